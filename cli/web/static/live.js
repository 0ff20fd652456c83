"use strict";
// Keeps a page current: one stream of server-sent events, whose messages are {id: HTML} of the parts that changed.
(() => {
  const live = document.getElementById("live");
  if (!live || !window.EventSource) return;
  const connection = document.getElementById("connection");
  let lost = false;

  const say = (text) => { if (connection.textContent !== text) connection.textContent = text; };

  // A selector that finds the same control after its part was replaced.
  const nameOf = (element) => {
    if (element.id) return "#" + CSS.escape(element.id);
    if (element.matches("details[id] > summary")) return `#${CSS.escape(element.parentElement.id)} > summary`;
    const name = ["href", "aria-labelledby"].find((each) => element.hasAttribute(each));
    return name ? `${element.localName}[${name}="${CSS.escape(element.getAttribute(name))}"]` : null;
  };

  const isSelecting = (part) => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && selection.intersectsNode?.(part) !== false &&
      part.contains(selection.anchorNode);
  };

  const waiting = new Map(); // parts in which text is selected: they are replaced afterwards

  const replace = (id, html) => {
    const part = document.getElementById(id);
    if (!part) return;
    if (isSelecting(part)) { waiting.set(id, html); return; }
    waiting.delete(id);
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const name = focused && nameOf(focused);
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    const opened = new Set([...part.querySelectorAll("details[open][id]")].map((each) => each.id));
    part.innerHTML = html;
    part.querySelectorAll(".scroll").forEach((each, place) => {
      if (scrolled[place]) [each.scrollLeft, each.scrollTop] = scrolled[place];
    });
    part.querySelectorAll("details[id]").forEach((each) => { each.open = opened.has(each.id); });
    if (name) part.querySelector(name)?.focus({ preventScroll: true });
  };

  document.addEventListener("selectionchange", () => {
    for (const [id, html] of [...waiting]) replace(id, html);
  });

  let source = null;

  const follow = () => {
    source = new EventSource(live.dataset.events);
    source.addEventListener("message", (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
    });
    source.addEventListener("open", () => {
      say(lost ? "Connected again." : "");
      document.body.classList.remove("lost");
      lost = false;
    });
    source.addEventListener("error", (event) => {
      lost = true;
      document.body.classList.add("lost");
      say(event.target.readyState === EventSource.CLOSED
        ? "Connection lost. Reload the page to try again."
        : "Connection lost, trying again. The numbers are the last known ones.");
    });
  };

  // Browsers open six connections to a server, and a stream keeps one: with six open pages, no other would be loaded.
  const followIfSeen = () => { source?.close(); if (!document.hidden) follow(); };

  document.addEventListener("visibilitychange", followIfSeen);
  followIfSeen();
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
})();
