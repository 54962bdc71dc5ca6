// Light, dark, or as the system has it. A classic script in the head, so that nothing is drawn in the wrong one first.
"use strict";

(() => {
  const KEY = "lading-theme";
  const ORDER = ["auto", "light", "dark"];

  function read() {
    try {
      const kept = localStorage.getItem(KEY);
      return ORDER.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // storage is off
    }
  }

  function show(theme) {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
  }

  show(read());
  addEventListener("DOMContentLoaded", () => {
    show(read());
    document.getElementById("theme")?.addEventListener("click", () => {
      const next = ORDER[(ORDER.indexOf(document.documentElement.dataset.theme) + 1) % ORDER.length];
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // then it lasts as long as the page
      }
      show(next);
    });
  });
})();
