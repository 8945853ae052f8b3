"use strict";
// Shows the tooltip of the mark under the pointer. The tables hold the same values for readers without a pointer.
const tip = document.getElementById("tip");
function hide() { tip.hidden = true; }
function show(event) {
  const mark = event.target instanceof Element && event.target.closest("[data-tip]");
  if (!mark) { hide(); return; }
  tip.textContent = mark.getAttribute("data-tip");
  tip.hidden = false;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(8, Math.min(event.clientX + 14, room)) + "px";
  const below = event.clientY + 18;
  const fits = below + tip.offsetHeight < window.innerHeight;
  tip.style.top = (fits ? below : Math.max(8, event.clientY - tip.offsetHeight - 14)) + "px";
}
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("pointerleave", hide);
document.addEventListener("scroll", hide, { passive: true });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
