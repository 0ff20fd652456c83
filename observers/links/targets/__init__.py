"""The targets of links, one module for each kind; the registry imports a module when a link of its kind is used."""
