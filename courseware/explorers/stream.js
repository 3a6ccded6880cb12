// Lesson 05: a stream of scores that are dragged up, down and to another place, and the state that is carried through it.

function picture(box, choose) {
  const said = html(box, "p", { "aria-live": "polite" })
  const play = player(box, "blocks fed", (fed) => show(fed))
  const row = html(box, "div", { class: "panels" })
  const margins = { left: 34, bottom: 40, top: 14, right: 6, half: true }
  const stream = panel(row, "", 300, 250, margins)
  const weights = panel(row, "", 300, 250, margins)
  const plane = panel(row, "Values; line: the output so far; star: the answer", 300, 250, { ...margins, left: 42 })
  const cards = html(row, "div", { class: "cards" })
  const layer = (of, name) => svg(of.root, "g", { class: name, "aria-hidden": "true" })
  const bands = [stream, weights].map((of) => layer(of, "band"))
  const names = [stream, weights].map((of) => layer(of, "names"))
  const scores = layer(stream, "scores")
  const top = svg(stream.root, "path", { class: "maximum" })
  const knobs = svg(stream.root, "g")
  const bars = layer(weights, "weights")
  const before = layer(weights, "before")
  const points = layer(plane, "values")
  const labels = layer(plane, "names")
  const answer = svg(plane.root, "text", { class: "star middle" }, "\u2605")
  const path = svg(plane.root, "path", { class: "output" })
  const output = svg(plane.root, "circle", { class: "output", r: 6 })

  let state
  // Key `key` gets a score, and a place in the stream if it may.
  const drag = (key, score, place) => {
    const { low, high, step } = state.drag
    const change = {}
    const now = state.order.indexOf(key)
    if (step && state.scores[now] !== null) {
      const own = state.order.map((_, i) => state.scores[state.order.indexOf(i)])
      own[key] = Math.max(low, Math.min(high, Math.round(score / step) * step))
      if (own[key] !== state.scores[now]) change.stream = [state.stream, own]
    }
    const to = Math.max(0, Math.min(state.order.length - 1, place))
    if (state.drag.places && to !== now) {
      change.order = state.order.filter((other) => other !== key)
      change.order.splice(to, 0, key)
    }
    if (Object.keys(change).length) choose(change)
  }

  const knob = (node, key) => {
    if (node.tabIndex === 0) return
    handle(
      node,
      "",
      (event) => {
        const [x, y] = stream.under(event)
        drag(key, y, Math.round(x))
      },
      (right, up) => {
        const now = state.order.indexOf(key)
        drag(key, state.scores[now] + up * state.drag.step, now + right)
      },
    )
  }

  function show(fed) {
    const { order, keys } = state
    const end = state.fed[fed]
    const start = fed ? state.fed[fed - 1] : 0
    const taken = (i) => (i < end && state.scores[i] !== null ? "fed" : "waiting") // a masked key is never taken
    write(said, fed ? `Block ${fed} of ${state.fed.length - 1}: ${keys.slice(start, end).join(", ")}.` : "Nothing seen yet.")
    ;[stream, weights].forEach((of, i) => {
      const [from, to] = [start - 0.5, end - 0.5]
      const [wide] = many(bands[i], "rect", 1)
      set(wide, { x: of.x(from), width: of.x(to) - of.x(from), y: of.span.y[1], height: of.span.y[0] - of.span.y[1] })
    })
    many(scores, "rect", order.length).forEach((bar, i) => {
      const [low, high] = [Math.min(0, state.scores[i]), Math.max(0, state.scores[i])]
      set(bar, { x: stream.x(i - 0.35), width: stream.x(0.7) - stream.x(0), y: stream.y(high), height: stream.y(low) - stream.y(high) })
      set(bar, { class: taken(i) })
    })
    const seen = state.m.slice(1, fed + 1).map((m, j) => [m, state.fed[j] - 0.5, state.fed[j + 1] - 0.5])
    const level = ([m, from, to], j) => `${j ? "L" : "M"}${stream.x(from)} ${stream.y(m)}H${stream.x(to)}`
    set(top, { d: seen.filter(([m]) => m !== null).map(level).join("") })
    const put = (nodes, heights) => nodes.forEach((bar, i) => {
      set(bar, { x: weights.x(i - 0.35), width: weights.x(0.7) - weights.x(0), class: taken(i) })
      bar.style.transform = `translateY(${weights.y(0)}px) scaleY(${-heights[i]})`
      set(bar, { height: weights.y(0) - weights.y(1) })
    })
    put(many(bars, "rect", order.length), state.weights[fed])
    many(before, "path", fed ? order.length : 0).forEach((outline, i) => {
      const height = state.weights[fed - 1][i]
      const [from, to] = [weights.x(i - 0.35), weights.x(i + 0.35)]
      set(outline, { d: height ? `M${from} ${weights.y(0)}V${weights.y(height)}H${to}V${weights.y(0)}` : "" })
    })
    many(points, "circle", order.length).forEach((point, i) => {
      const [x, y] = state.values[i]
      set(point, { cx: plane.x(x), cy: plane.y(y), r: 5, class: taken(i) })
    })
    const visible = (fed) => state.m[fed] !== null // before the first visible key there is no output
    const way = state.out.slice(0, fed + 1).filter((_, j) => visible(j)).map(([x, y]) => `${plane.x(x)} ${plane.y(y)}`)
    set(path, { d: way.length ? `M${way.join("L")}` : "" })
    set(output, { cx: plane.x(state.out[fed][0]), cy: plane.y(state.out[fed][1]), visibility: visible(fed) ? "visible" : "hidden" })
    cards.replaceChildren()
    state.cards.forEach((name, i) => {
      const card = html(cards, "div")
      html(card, "b", {}, state.numbers[fed][i])
      html(card, "span", {}, name)
    })
  }

  return (given) => {
    const first = !state
    state = given
    const { keys, order } = state
    const across = { ends: [-0.6, keys.length - 0.4] }
    stream.axes({ ...across, label: "keys, in order of arrival" }, { ...state.axes.score, label: "score" })
    weights.axes({ ...across, label: "keys, in order of arrival" }, { ...state.axes.weight, label: "weight" })
    plane.axes({ ...state.axes.first, label: "first component" }, { ...state.axes.second, label: "second" })
    ;[stream, weights].forEach((of, i) => write(of.caption, state.captions[i]))
    ;[stream, weights].forEach((of, i) =>
      many(names[i], "text", keys.length).forEach((text, j) => {
        set(text, { x: of.x(j), y: of.span.y[0] + 15, class: "middle" })
        write(text, keys[j])
      }),
    )
    const placed = [] // each name beside its point where none before it stands: [left, base, width]
    many(labels, "text", keys.length).forEach((text, i) => {
      const [x, y, width] = [plane.x(state.values[i][0]), plane.y(state.values[i][1]), 7 * keys[i].length]
      const spots = [x + 8, x - 8 - width].flatMap((left) => [y - 6, y + 14].map((base) => [left, base]))
      const free = ([left, base]) =>
        left + width <= plane.span.x[1] + 6 &&
        placed.every(([at, other, wide]) => Math.abs(base - other) > 11 || left + width < at || left > at + wide)
      const [left, base] = spots.find(free) ?? spots[0]
      placed.push([left, base, width])
      set(text, { x: left, y: base })
      write(text, keys[i])
    })
    set(answer, { x: plane.x(state.answer[0]), y: plane.y(state.answer[1]) + 6 })
    many(knobs, "circle", keys.length).forEach((node, key) => {
      const i = order.indexOf(key)
      knob(node, key)
      set(node, { cx: stream.x(i), cy: stream.y(state.scores[i] ?? 0), r: 7, "aria-label": `score of ${keys[i]}` })
      set(node, { "aria-valuenow": state.scores[i] ?? 0, "aria-valuetext": state.texts[i] })
      set(node, { visibility: state.scores[i] === null ? "hidden" : "visible" }) // a masked score cannot be dragged
    })
    play.over(state.fed.length - 1, Math.min(first ? state.opens : play.at(), state.fed.length - 1))
  }
}
