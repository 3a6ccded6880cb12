// What the theme leaves out for those who read with the keyboard or by ear.
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2")
for (const summary of document.querySelectorAll("summary[aria-label]")) summary.removeAttribute("aria-label")
for (const corner of document.querySelectorAll("th")) if (!corner.textContent.trim()) corner.outerHTML = "<td></td>"
document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Lessons")
for (const box of document.querySelectorAll(".cell_output, .table-wrapper, div.math")) {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
}
