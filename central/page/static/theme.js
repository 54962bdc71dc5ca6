// Light, dark, or as the system has it. A classic script in the head, so that nothing is drawn in the wrong one first: it says as
// `data-theme` which of the two it is, and the colours of each stand once in the style sheet.
"use strict";

(() => {
  const KEY = "lading-theme";
  const ORDER = ["auto", "light", "dark"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = read();

  function read() {
    try {
      const kept = localStorage.getItem(KEY);
      return ORDER.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // storage is off
    }
  }

  function show() {
    document.documentElement.dataset.theme = chosen !== "auto" ? chosen : dark.matches ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${chosen}`;
  }

  show();
  dark.addEventListener("change", show);
  addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme")?.addEventListener("click", () => {
      chosen = ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length];
      try {
        localStorage.setItem(KEY, chosen);
      } catch {
        // then it lasts as long as the page
      }
      show();
    });
  });
})();
