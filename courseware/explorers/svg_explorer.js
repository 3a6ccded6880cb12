// What the explorers share that one takes hold of: elements, axes, controls, dragging, play, and a page without a kernel.
// Every number that is shown comes from the model, in Python; only places on the screen are worked out here. An
// explorer's own module defines `picture(box, choose)`, which returns the function that draws a state.

const set = (node, attributes) => {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value)
  return node
}

const add = (parent, node, attributes, text) => {
  if (text !== undefined) node.textContent = text
  parent.append(set(node, attributes))
  return node
}

// JupyterLab leaves alone the keys that are pressed on an element with this attribute.
const OWN_KEYS = { "data-lm-suppress-shortcuts": "true" }

const html = (parent, tag, attributes = {}, text) => {
  const own = ["input", "select", "button", "summary"].includes(tag) ? OWN_KEYS : {}
  return add(parent, document.createElement(tag), { ...own, ...attributes }, text)
}

const svg = (parent, tag, attributes = {}, text) =>
  add(parent, document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, text)

// `count` children with this tag: those that are there already are kept, so that they can move to their new places.
const many = (group, tag, count) => {
  while (group.children.length > count) group.lastChild.remove()
  while (group.children.length < count) svg(group, tag)
  return [...group.children]
}

const write = (node, text) => {
  if (node.textContent !== text) node.textContent = text
}

// A titled drawing of its own size, with places for x and y of the data between the margins. half: where the page is
// too narrow for two of its size in a row, but not much, it is smaller, so that two fit.
function panel(box, title, size, height, margins = {}) {
  const { left = 40, right = 10, top = 10, bottom = 36, half = false } = margins
  // Never wider than there is room for when it is made: scaled down, its text would be too small.
  const room = box.closest(".svg-explorer").clientWidth - 26
  const most = half && room > 420 ? Math.trunc(room / 2) - 6 : room
  const width = room > 0 ? Math.min(size, most) : size
  const figure = html(box, "figure", { style: `width: ${width}px` })
  const caption = html(figure, "figcaption", {}, title)
  const root = svg(figure, "svg", { viewBox: `0 0 ${width} ${height}`, width, height })
  const frame = svg(root, "g", { class: "frame", "aria-hidden": "true" })
  const span = { x: [left, width - right], y: [height - bottom, top] }
  const ends = {}
  const place = (name) => (value) => {
    const [low, high] = ends[name]
    const [start, stop] = span[name]
    return start + ((value - low) / (high - low)) * (stop - start)
  }
  const x = place("x")
  const y = place("y")
  const axes = (xs, ys) => {
    Object.assign(ends, { x: xs.ends, y: ys.ends })
    frame.replaceChildren()
    for (const [at, text] of xs.ticks ?? []) {
      svg(frame, "line", { class: "grid", x1: x(at), x2: x(at), y1: span.y[0], y2: span.y[1] })
      svg(frame, "text", { x: x(at), y: span.y[0] + 15, class: "middle" }, text)
    }
    for (const [at, text] of ys.ticks ?? []) {
      svg(frame, "line", { class: "grid", x1: span.x[0], x2: span.x[1], y1: y(at), y2: y(at) })
      svg(frame, "text", { x: left - 5, y: y(at) + 4, class: "end" }, text)
    }
    if (xs.label) svg(frame, "text", { x: width - right, y: height - 5, class: "end" }, xs.label)
    if (ys.label) svg(frame, "text", { x: 11, y: top + 4, class: "end", transform: `rotate(-90 11 ${top + 4})` }, ys.label)
  }
  // Where in the data a pointer is.
  const under = (event) => {
    const { left: from, top: above, width: wide } = root.getBoundingClientRect()
    const back = (name, pixel) => {
      const [start, stop] = span[name]
      const [low, high] = ends[name]
      return low + ((pixel - start) / (stop - start)) * (high - low)
    }
    const scale = width / wide
    return [back("x", (event.clientX - from) * scale), back("y", (event.clientY - above) * scale)]
  }
  return { root, figure, caption, axes, x, y, under, span }
}

// A shape that can be taken hold of with mouse, finger or keyboard. onMove(event), onKey(right, up).
function handle(node, label, onMove, onKey) {
  set(node, { tabindex: 0, role: "slider", "aria-label": label, class: "handle", ...OWN_KEYS })
  let held = false
  // Or the page scrolls, and the drag ends: Chromium heeds no touch-action on a shape.
  node.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false })
  node.addEventListener("pointerdown", (event) => {
    event.preventDefault()
    node.focus()
    node.setPointerCapture(event.pointerId)
    held = true
  })
  node.addEventListener("pointermove", (event) => held && onMove(event))
  for (const end of ["pointerup", "pointercancel"]) node.addEventListener(end, () => (held = false))
  const keys = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }
  node.addEventListener("keydown", (event) => {
    if (!(event.key in keys)) return
    event.preventDefault()
    onKey(...keys[event.key])
  })
  return node
}

// A button that plays, and a slider over moments; show(at) draws one. The end may be moved: player.over(end, at).
function player(box, name, show) {
  const row = html(box, "div", { class: "player" })
  const button = html(row, "button", { type: "button" })
  const label = html(row, "label", {}, name)
  const slider = html(label, "input", { type: "range", min: 0, step: 1 })
  const count = html(row, "output")
  let timer
  const at = () => Number(slider.value)
  const go = (to) => {
    slider.value = to
    write(count, `${at()} of ${slider.max}`)
    show(at())
  }
  const pause = () => {
    clearInterval(timer)
    timer = undefined
    write(button, "\u25b6 play")
  }
  const play = () => {
    if (at() >= Number(slider.max)) go(0)
    write(button, "\u275a\u275a pause")
    timer = setInterval(() => {
      go(at() + Math.ceil(slider.max / 60))
      if (at() >= Number(slider.max)) pause()
    }, 450 / Math.min(Math.ceil(slider.max / 12), 4))
  }
  button.addEventListener("click", () => (timer ? pause() : play()))
  slider.addEventListener("input", () => go(at()))
  pause()
  return {
    at,
    over(end, to) {
      if (!row.isConnected) pause()
      slider.max = end
      go(to)
    },
  }
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b)

// One control of what the model says of it: kind, name, label, options [[text, value], ...].
function control(box, { kind, name, label, options }, choose) {
  const outer = html(box, kind === "buttons" ? "fieldset" : "label", { class: `control ${kind}` })
  html(outer, kind === "buttons" ? "legend" : "span", {}, label)
  const value = (index) => ({ [name]: options[index][1] })
  const index = (settings) => options.findIndex(([, option]) => same(option, settings[name]))
  if (kind === "slider") {
    const input = html(outer, "input", { type: "range", min: 0, max: options.length - 1, step: 1, name, "aria-label": label })
    const text = html(outer, "output")
    input.addEventListener("input", () => choose(value(input.value)))
    return (settings) => {
      input.value = index(settings)
      write(text, options[index(settings)][0])
      set(input, { "aria-valuetext": text.textContent })
    }
  }
  if (kind === "menu") {
    const input = html(outer, "select", { name, "aria-label": label })
    const own = html(input, "option", { hidden: "" }, "your own")
    for (const [text] of options) html(input, "option", {}, text)
    input.addEventListener("change", () => choose(value(input.selectedIndex - 1)))
    return (settings) => (input.selectedIndex = index(settings) + 1)
  }
  if (kind === "tick") {
    const input = html(outer, "input", { type: "checkbox", name })
    input.addEventListener("change", () => choose({ [name]: input.checked }))
    return (settings) => (input.checked = settings[name])
  }
  const group = `${name}-${Math.random()}`
  const inputs = options.map(([text], at) => {
    const input = html(html(outer, "label"), "input", { type: "radio", name: group })
    input.parentNode.append(text)
    input.addEventListener("change", () => choose(value(at)))
    return input
  })
  return (settings) => inputs.forEach((input, at) => (input.checked = at === index(settings)))
}

// Draws every state that the model sends. While one is on its way, what is chosen waits; only the last of it is sent.
function render({ model, el }) {
  const box = html(el, "div", { class: "svg-explorer" })
  const row = html(box, "div", { class: "controls" })
  let waiting = false
  let wanted
  const send = () => {
    waiting = true
    model.set("settings", wanted)
    wanted = undefined
    model.save_changes()
  }
  const choose = (change) => {
    const settings = { ...(wanted ?? model.get("settings")), ...change }
    if (same(settings, model.get("settings"))) return
    wanted = settings
    if (!waiting) send()
  }
  const controls = model.get("controls").map((description) => control(row, description, choose))
  const draw = picture(box, choose)
  const update = () => {
    const state = model.get("state")
    for (const show of controls) show(state.settings)
    draw(state)
  }
  model.on("change:state", () => {
    waiting = false
    update()
    if (wanted) send()
  })
  update()
}

// How far two settings are apart: numbers by their difference, everything else by being another.
const apart = (a, b) => {
  if (typeof a === "number" && typeof b === "number") return Math.abs(a - b)
  if (Array.isArray(a) && Array.isArray(b) && a.length === b.length)
    return a.reduce((sum, item, i) => sum + apart(item, b[i]), 0)
  return same(a, b) ? 0 : 1
}

// Stands in for the model where there is no kernel: of the states that it wrote beforehand, it finds the nearest one to
// what is chosen; what was changed counts before what was not.
function written({ names, values, rows, controls, start }) {
  const listeners = []
  const settingsOf = (row) => Object.fromEntries(names.settings.map((name, i) => [name, values[row[i]]]))
  const stateOf = (row) => Object.fromEntries(names.state.map((name, i) => [name, values[row[names.settings.length + i]]]))
  let settings = start
  let state
  const nearest = (asked) => {
    const changed = names.settings.filter((name) => !same(asked[name], settings[name]))
    const others = names.settings.filter((name) => !changed.includes(name))
    const cost = (row, keys) => {
      const found = settingsOf(row)
      return keys.reduce((sum, name) => sum + apart(asked[name], found[name]), 0)
    }
    return rows.reduce((best, row) => {
      const order = best ? cost(row, changed) - cost(best, changed) || cost(row, others) - cost(best, others) : -1
      return order < 0 ? row : best
    }, undefined)
  }
  const to = (asked) => {
    const row = nearest(asked)
    settings = settingsOf(row)
    state = { ...stateOf(row), settings }
  }
  to(start)
  return {
    get: (name) => ({ settings, state, controls })[name],
    set: (_, asked) => to(asked),
    save_changes: () => listeners.forEach((listener) => listener()),
    on: (_, listener) => listeners.push(listener),
  }
}

export default { render }
