// Lesson 06: the tiles of the scores in the order of either loop, and what a choice of tile sizes costs.

function picture(box, choose) {
  const headline = html(box, "div", { class: "cards headline", "aria-live": "polite" })
  const play = player(box, "visits", (visit) => show(visit))
  const said = html(box, "p")
  const row = html(box, "div", { class: "panels" })
  const margins = { left: 44, top: 8, right: 6, bottom: 32, half: true }
  const grids = [0, 1].map(() => {
    const of = panel(row, "", 236, 236, margins)
    const [tiles, numbers] = [svg(of.root, "g"), svg(of.root, "g", { class: "numbers" })]
    return { of, tiles, numbers, way: svg(of.root, "path", { class: "way" }), stair: svg(of.root, "path", { class: "stair" }) }
  })
  const side = html(row, "div", { class: "side" })
  const note = html(box, "p")
  const moved = panel(side, "", 460, 170, { left: 50, top: 4, right: 20, bottom: 18 })
  const rest = html(box, "div", { class: "panels" })
  const bars = ["sram", "bytes"].map((name) => ({ name, box: html(name === "sram" ? side : rest, "div") }))
  const roof = { box: html(rest, "div") }
  const waves = { box: html(rest, "div") }
  const details = html(box, "details", { hidden: "" })
  html(details, "summary", {}, "All numbers, and what the compiler used")
  const numbers = html(details, "div")

  let state
  const shown = (loop, visit) => (loop === state.chosen ? visit : state.other[visit])
  const bytes = (number) => number.toLocaleString("en")

  const tell = (loop, i, j) => {
    const { name, number, about } = state.loops[loop]
    const [from, to] = [state.edges.q, state.edges.k]
    const tile = `${name}: queries ${from[i]} to ${from[i + 1] - 1} and keys ${to[j]} to ${to[j + 1] - 1}`
    const visit = number[i][j]
    write(said, visit ? `${tile}: visit ${visit}, ${state.costs[about[visit - 1]]}.` : `${tile}: never loaded.`)
  }

  // Rows of parts end to end, each with a note behind it, and a line where a budget ends.
  const rows = (of, title, given, width, height) => {
    of.panel ??= panel(of.box, title, width, height, { left: 112, top: 2, right: 92, bottom: 2 })
    write(of.panel.caption, title)
    const p = of.panel
    of.parts ??= svg(p.root, "g")
    of.words ??= svg(p.root, "g")
    p.axes({ ends: [0, given.end] }, { ends: [given.rows.length - 0.5, -0.5] })
    const parts = given.rows.flatMap(({ parts: list, mark }, y) => {
      let left = 0
      const drawn = list.map(([label, length, kind]) => {
        left += length
        return { y, label, from: p.x(left - length), to: p.x(left), kind, height: 0.66 }
      })
      return mark ? [...drawn, { y, label: "", from: p.x(mark) - 1, to: p.x(mark) + 1, kind: "mark", height: 0.9 }] : drawn
    })
    many(of.parts, "rect", parts.length).forEach((rect, i) => {
      const { y, from, to, kind, height } = parts[i]
      set(rect, { x: from, width: Math.max(to - from, 0), y: p.y(y - height / 2), height: p.y(height) - p.y(0), class: kind })
    })
    const words = given.rows.flatMap(({ name, note, over, mark, parts: list }, y) => {
      const end = list.reduce((sum, [, length]) => sum + length, 0)
      return [
        [name, p.span.x[0] - 5, y, "end"],
        [note, p.x(Math.max(end, mark ?? 0)) + 5, y, over ? "over" : ""],
      ]
    })
    for (const { y, label, from, to } of parts) if (label && to - from > 6 + 7 * label.length) words.push([label, (from + to) / 2, y, "middle label"])
    many(of.words, "text", words.length).forEach((text, i) => {
      const [said, x, y, kind] = words[i]
      set(text, { x, y: p.y(y) + 4, class: kind })
      write(text, said)
    })
  }

  function show(visit) {
    grids.forEach(({ tiles, way, of }, loop) => {
      const { visits } = state.loops[loop]
      const done = shown(loop, visit)
      const kind = (number) => (number > done ? "tile later" : number === done && done < visits.length ? "tile now" : "tile visited")
      const wide = state.edges.k.length - 1
      const nodes = tiles.children
      visits.forEach(([i, j], at) => {
        const node = nodes[i * wide + j]
        const name = kind(at + 1)
        if (node.getAttribute("class") !== name) node.setAttribute("class", name)
      })
      const centre = ([i, j]) => [of.x((state.edges.k[j] + state.edges.k[j + 1]) / 2), of.y((state.edges.q[i] + state.edges.q[i + 1]) / 2)]
      set(way, { d: done > 1 ? `M${visits.slice(0, done).map((tile) => centre(tile).join(" ")).join("L")}` : "" })
      write(of.caption, `${state.loops[loop].title}: ${done} of ${visits.length}`)
    })
    const chosen = state.loops[state.chosen]
    if (visit) tell(state.chosen, ...chosen.visits[visit - 1])
    else write(said, "Nothing visited yet. Point at a tile for its bytes.")
    const bar = []
    state.tensors.forEach(([, kind], y) => state.moved.forEach((by, loop) => {
      const [read, written] = by[y].map((series) => series[shown(loop, visit)])
      const [allRead, allWritten] = by[y].map((series) => series.at(-1))
      const place = { y: moved.y(y - 0.36 + 0.38 * loop), height: moved.y(0.32) - moved.y(0) }
      bar.push({ ...place, from: 0, to: allRead + allWritten, kind: "goal" })
      bar.push({ ...place, from: 0, to: read, kind })
      bar.push({ ...place, from: read, to: read + written, kind: `${kind} pale` })
    }))
    many(moved.bars, "rect", bar.length).forEach((rect, i) => {
      const { y, height, from, to, kind } = bar[i]
      set(rect, { x: moved.x(from), width: moved.x(to) - moved.x(from), y, height, class: kind })
    })
    const [above, below] = state.totals.map((series, loop) => bytes(series[shown(loop, visit)]))
    write(moved.caption, `Bytes so far: ${above} (upper bars, queries outermost), ${below} (keys). Pale: written`)
    if (state.held) {
      const { parts, note } = state.held[visit]
      rows(bars[0], state.sram.title, { ...state.sram, rows: [{ name: "this visit", parts, note, mark: state.sram.mark }] }, 460, 40)
    }
  }
  moved.bars = svg(moved.root, "g")
  moved.names = svg(moved.root, "g")

  const line = (points, of) => `M${points.map(([x, y]) => `${of.x(x)} ${of.y(y)}`).join("L")}`

  return (given) => {
    const first = !state
    const stayed = state && play.at() === state.loops[state.chosen].visits.length
    state = given
    const { edges } = state
    write(note, state.note)
    headline.replaceChildren()
    for (const [value, name, over] of state.headline ?? []) {
      const card = html(headline, "div", { class: over ? "over" : "" })
      html(card, "b", {}, value)
      html(card, "span", {}, name)
    }
    grids.forEach(({ of, tiles, numbers: texts, stair }, loop) => {
      of.axes({ ...state.axes.k, label: "key" }, { ...state.axes.q, label: "query" })
      const [high, wide] = [edges.q.length - 1, edges.k.length - 1]
      const { number } = state.loops[loop]
      const labelled = of.x(edges.k[1]) - of.x(0) > 19 && of.y(edges.q[1]) - of.y(0) > 13
      many(tiles, "rect", high * wide).forEach((node, at) => {
        const [i, j] = [Math.trunc(at / wide), at % wide]
        const [x, y] = [of.x(edges.k[j]), of.y(edges.q[i])]
        set(node, { x, y, width: of.x(edges.k[j + 1]) - x, height: of.y(edges.q[i + 1]) - y })
        if (!number[i][j]) set(node, { class: "tile skipped" })
        node.onpointerenter = node.onpointerdown = () => tell(loop, i, j)
      })
      // A finger leaves as soon as it is lifted: what it has tapped stays named.
      tiles.onpointerleave = ({ pointerType }) => pointerType === "touch" || show(play.at())
      many(texts, "text", labelled ? high * wide : 0).forEach((text, at) => {
        const [i, j] = [Math.trunc(at / wide), at % wide]
        set(text, { x: of.x((edges.k[j] + edges.k[j + 1]) / 2), y: of.y((edges.q[i] + edges.q[i + 1]) / 2) + 4, class: "middle" })
        write(text, number[i][j] ? String(number[i][j]) : "")
      })
      set(stair, { d: state.stair ? line(state.stair, of) : "" })
      grids[loop].way.style.display = labelled ? "none" : ""
    })
    moved.axes(state.axes.bytes, { ends: [state.tensors.length - 0.5, -0.5] })
    many(moved.names, "text", state.tensors.length).forEach((text, y) => {
      set(text, { x: moved.span.x[0] - 6, y: moved.y(y) + 4, class: "end" })
      write(text, state.tensors[y][0])
    })
    if (!state.held) {
      rows(bars[0], state.sram.title, state.sram, 460, 92)
      rows(bars[1], state.bytes.title, state.bytes, 350, 110)
      roof.panel ??= panel(roof.box, "", 340, 200, { left: 58, top: 6, right: 16 })
      write(roof.panel.caption, state.roof.title)
      roof.panel.axes({ ...state.roof.x, label: "FLOPs per byte requested" }, { ...state.roof.y, label: "TFLOP/s" })
      roof.line ??= svg(roof.panel.root, "path", { class: "maximum" })
      roof.dots ??= svg(roof.panel.root, "g")
      roof.words ??= svg(roof.panel.root, "g")
      set(roof.line, { d: line(state.roof.line, roof.panel) })
      const { points } = state.roof
      const { x: [start], y: [, top] } = roof.panel.span
      const lineOf = (i) => top + 10 + 16 * i
      many(roof.dots, "circle", 2 * points.length).forEach((dot, at) => {
        const i = at >> 1
        const [x, y] = at % 2 ? [start + 10, lineOf(i)] : [roof.panel.x(points[i][0]), roof.panel.y(points[i][1])]
        set(dot, { cx: x, cy: y, r: 6, class: points[i][3] })
      })
      many(roof.words, "text", points.length).forEach((text, i) => {
        set(text, { x: start + 20, y: lineOf(i) + 4 })
        write(text, points[i][2])
      })
      waves.panel ??= panel(waves.box, "", 216, 120, { left: 44, top: 6, bottom: 20 })
      write(waves.panel.caption, state.waves.title)
      waves.panel.axes({ ends: [-0.6, 9.6], ticks: state.waves.ticks }, state.waves.y)
      waves.bars ??= svg(waves.panel.root, "g")
      many(waves.bars, "rect", state.waves.heights.length).forEach((bar, i) => {
        const [top, height] = [waves.panel.y(state.waves.heights[i]), waves.panel.y(0) - waves.panel.y(state.waves.heights[i])]
        set(bar, { x: waves.panel.x(i - 0.4), width: waves.panel.x(0.8) - waves.panel.x(0), y: top, height, class: "programs" })
      })
      details.hidden = !state.details
      numbers.innerHTML = state.details ?? ""
    }
    const end = state.loops[state.chosen].visits.length
    play.over(end, first ? Math.min(state.opens, end) : stayed ? end : Math.min(play.at(), end))
  }
}
