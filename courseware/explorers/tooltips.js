// Places of a picture that is drawn in Python: one that can be chosen says so when it is clicked. Where a narrow page has
// made the picture small, a click beside them shows it at its own size, and the next one ends that.

function render({ model, el }) {
  el.classList.add("tooltips")
  const box = () => el.closest(".widget-gridbox")
  const large = () => box().style.getPropertyValue("--least")
  const small = () => el.clientWidth < box().querySelector("img").naturalWidth / 2 - 8
  const draw = () => {
    const focused = [...el.children].indexOf(document.activeElement)
    el.innerHTML = model.get("html")
    el.children[focused]?.focus()
  }
  el.addEventListener("click", ({ target }) => {
    if (target.dataset.chosen) model.send(JSON.parse(target.dataset.chosen))
    if (target === el && (large() || small())) box().style.setProperty("--least", large() ? "" : "999em")
  })
  el.addEventListener("pointermove", () => (el.style.cursor = large() ? "zoom-out" : small() ? "zoom-in" : ""))
  model.on("change:html", draw)
  draw()
}

export default { render }
