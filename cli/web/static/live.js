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
    const link = element.getAttribute("href");
    return link ? `a[href="${CSS.escape(link)}"]` : null;
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

  const source = new EventSource(live.dataset.events);
  source.addEventListener("message", (event) => {
    for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
  });
  source.addEventListener("open", () => {
    say(lost ? "Connected again." : "");
    document.body.classList.remove("lost");
    lost = false;
  });
  source.addEventListener("error", () => {
    lost = true;
    document.body.classList.add("lost");
    say(source.readyState === EventSource.CLOSED
      ? "Connection lost. Reload the page to try again."
      : "Connection lost, trying again. The numbers are the last known ones.");
  });
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
})();
