// Before the first paint: the reader's choice of light or dark, else the system's.
(() => {
  const kept = localStorage.getItem("nearhit-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
