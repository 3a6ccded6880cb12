// Lesson 01: two vectors whose tips are dragged, the shadow of one on the other, and the products that add up.

function picture(box, choose) {
  const row = html(box, "div", { class: "panels" })
  const plane = panel(row, "Drag the tips. Green: b's shadow on a's line", 380, 376)
  const line = svg(plane.root, "line", { class: "faint" })
  const drop = svg(plane.root, "line", { class: "dotted" })
  const shadow = svg(plane.root, "line", { class: "shadow" })
  const cards = html(row, "div", { class: "cards", "aria-live": "polite" })
  const side = html(row, "div")
  const sums = panel(side, "a \u00b7 b: the products and their sum", 310, 160, { left: 100, right: 36 })
  const zero = svg(sums.root, "line", { class: "axis" })
  const bars = svg(sums.root, "g")
  const words = svg(sums.root, "g")
  const size = panel(side, "The same as an area: |a| times the shadow", 310, 200)
  const area = svg(size.root, "rect")
  const level = svg(size.root, "line", { class: "axis" })

  let state
  const nearest = (value) => {
    const { limit, step } = state.plane
    return Math.max(-limit, Math.min(limit, Math.round(value / step) * step))
  }
  const arrow = (name) => {
    const shaft = svg(plane.root, "line", { class: `vector ${name}` })
    const label = svg(plane.root, "text", { class: `middle big ${name}` }, name)
    const tip = svg(plane.root, "circle", { r: 11 })
    const to = (x, y) => choose({ [name]: [nearest(x), nearest(y)] })
    handle(
      tip,
      `tip of ${name}`,
      (event) => to(...plane.under(event)),
      (right, up) => to(state[name][0] + right * state.plane.step, state[name][1] + up * state.plane.step),
    )
    tip.classList.add(name)
    return () => {
      const [x, y] = [plane.x(state[name][0]), plane.y(state[name][1])]
      set(shaft, { x1: plane.x(0), y1: plane.y(0), x2: x, y2: y })
      set(tip, { cx: x, cy: y, "aria-valuetext": `(${state[name].join(", ")})`, "aria-valuenow": state[name][0] })
      set(label, { x, y: y - 16 })
    }
  }
  const arrows = [arrow("a"), arrow("b")]

  return (given) => {
    state = given
    const { ends, ticks } = state.plane
    plane.axes({ ends, ticks, label: "first component" }, { ends, ticks, label: "second component" })
    const [fx, fy] = [plane.x(state.foot[0]), plane.y(state.foot[1])]
    const [ox, oy] = [plane.x(0), plane.y(0)]
    set(shadow, { x1: ox, y1: oy, x2: fx, y2: fy })
    set(drop, { x1: plane.x(state.b[0]), y1: plane.y(state.b[1]), x2: fx, y2: fy })
    set(line, { x1: ox, y1: oy, x2: fx, y2: fy })
    arrows.forEach((draw) => draw())

    sums.axes({ ends: state.sums.ends, ticks: state.sums.ticks }, { ends: [state.names.length - 0.5, -0.5] })
    set(zero, { x1: sums.x(0), x2: sums.x(0), y1: sums.span.y[0], y2: sums.span.y[1] })
    many(bars, "rect", state.names.length).forEach((bar, i) => {
      const [from, to] = [sums.x(Math.min(0, state.values[i])), sums.x(Math.max(0, state.values[i]))]
      set(bar, { x: from, width: to - from, y: sums.y(i - 0.36), height: sums.y(0.72) - sums.y(0), class: state.kinds[i] })
    })
    many(words, "text", 2 * state.names.length).forEach((text, j) => {
      const i = j >> 1
      if (j % 2) {
        set(text, { x: sums.x(Math.max(0, state.values[i])) + 5, y: sums.y(i) + 4 })
        write(text, state.texts[i])
      } else {
        set(text, { x: 93, y: sums.y(i) + 4, class: "end" })
        write(text, state.names[i])
      }
    })
    const [long, high] = state.area
    size.axes({ ...state.sides[0], label: "length of a" }, { ...state.sides[1], label: "shadow of b" })
    const [above, under] = [size.y(Math.max(0, high)), size.y(Math.min(0, high))]
    set(area, { x: size.x(0), width: size.x(long) - size.x(0), y: above, height: under - above, class: state.kinds[2] })
    set(level, { x1: size.span.x[0], x2: size.span.x[1], y1: size.y(0), y2: size.y(0) })
    cards.replaceChildren()
    state.cards.forEach((name, i) => {
      const card = html(cards, "div")
      html(card, "b", {}, state.numbers[i])
      html(card, "span", {}, name)
    })
  }
}
