// Shows what an Explorer says, in Python: its controls, and the page for what they choose. Every number and every place
// in a drawing comes from there; here are only controls, playing, dragging, pointing, and a page without a kernel.

const AT_END = 1e9 // explorer.AT_END
const LONG_MS = 200 // after which an answer that is not there yet is announced
const LOST_MS = 10_000 // after which there is no kernel that would answer
const STILL_MS = 500 // after which a page without a kernel says that it lacks what was chosen: not in the middle of a drag

// JupyterLab leaves alone the keys that are pressed on an element with this attribute.
const OWN_KEYS = "data-lm-suppress-shortcuts"

const add = (parent, tag, attributes = {}, text) => {
  const node = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value)
  if (text !== undefined) node.textContent = text
  parent.append(node)
  return node
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b)

// Makes a node like another one. What stays the same node keeps the focus, a pointer that holds it, and its motion.
function become(node, next) {
  if (node.nodeName !== next.nodeName) return node.replaceWith(next)
  if (node.nodeType === Node.TEXT_NODE) return node.data === next.data || (node.data = next.data)
  const kept = ["open", "tabindex", OWN_KEYS] // what a reader has changed, and `render`
  for (const { name } of [...node.attributes]) if (!next.hasAttribute(name) && !kept.includes(name)) node.removeAttribute(name)
  for (const { name, value } of next.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value)
  const [before, after] = [[...node.childNodes], [...next.childNodes]]
  after.forEach((child, i) => (i < before.length ? become(before[i], child) : node.append(child)))
  before.slice(after.length).forEach((child) => child.remove())
}

// One control. Returns a function that shows the value of a state's settings.
function control(row, { kind, name, label, options, play }, choose) {
  const box = play ? add(row, "span", { class: "control" }) : row // which keeps the button beside its slider
  const outer = add(box, kind === "buttons" ? "fieldset" : "label", { class: `control ${kind}` })
  add(outer, kind === "buttons" ? "legend" : "span", {}, label)
  const pick = (index) => choose({ [name]: options[index][1] })
  const index = (settings) => options.findIndex(([, option]) => same(option, settings[name]))
  if (kind === "slider") {
    const input = add(outer, "input", { type: "range", min: 0, step: 1, name, "aria-label": label })
    const text = add(outer, "output")
    input.addEventListener("input", () => pick(input.value))
    const button = play && player(box, label, input, pick, play)
    return ({ settings, ends }) => {
      const end = ends[name] ?? Infinity
      input.max = options.length - 1 - [...options].reverse().findIndex(([, option]) => !(option > end))
      input.value = index(settings)
      text.textContent = options[input.value][0] + (name in ends ? ` of ${options[input.max][0]}` : "")
      input.setAttribute("aria-valuetext", text.textContent)
      if (button) button()
    }
  }
  if (kind === "menu") {
    const input = add(outer, "select", { name, "aria-label": label })
    add(input, "option", { hidden: "" }, "your own")
    for (const [text] of options) add(input, "option", {}, text)
    input.addEventListener("change", () => pick(input.selectedIndex - 1))
    return ({ settings }) => (input.selectedIndex = index(settings) + 1)
  }
  if (kind === "tick") {
    const input = add(outer, "input", { type: "checkbox", name })
    input.addEventListener("change", () => choose({ [name]: input.checked }))
    return ({ settings }) => (input.checked = settings[name])
  }
  const group = `${name}-${Math.random()}`
  const inputs = options.map(([text], at) => {
    const input = add(add(outer, "label"), "input", { type: "radio", name: group })
    input.parentNode.append(text)
    input.addEventListener("change", () => pick(at))
    return input
  })
  return ({ settings }) => inputs.forEach((input, at) => (input.checked = at === index(settings)))
}

// A button that moves a slider on by itself, in at most 60 steps, each of so many milliseconds, or with play = true in a
// few seconds. Returns a function to be called for every new state.
function player(box, label, input, pick, play) {
  const button = add(box, "button", { type: "button", "aria-label": `play ${label}` })
  let timer
  const pause = () => {
    clearTimeout(timer)
    timer = undefined
    button.textContent = "\u25b6 play"
  }
  const next = () => pick(Math.min(Number(input.value) + Math.ceil(input.max / 60), input.max))
  const atEnd = () => Number(input.value) >= Number(input.max)
  const wait = () => (timer = setTimeout(next, play === true ? 450 / Math.min(Math.ceil(input.max / 12), 4) : play))
  button.addEventListener("click", () => {
    if (timer) return pause()
    button.textContent = "\u275a\u275a pause"
    timer = -1
    atEnd() ? pick(0) : next()
  })
  input.addEventListener("pointerdown", pause)
  pause()
  // The next step waits for the answer to the one before.
  return () => {
    if (!timer) return
    clearTimeout(timer)
    atEnd() || !box.isConnected ? pause() : wait()
  }
}

// Dragging what has the class handle, with mouse, finger or arrow keys.
function drags(box, settingsNow, choose) {
  let held
  const keys = { ArrowRight: ["x", 1], ArrowLeft: ["x", -1], ArrowUp: ["y", 1], ArrowDown: ["y", -1] }
  const move = (node, places) => {
    const moves = JSON.parse(node.dataset.moves)
    const change = {}
    for (const [axis, at] of Object.entries(places)) {
      const [name, index, low, high, step] = moves[axis]
      const value = Math.max(low, Math.min(high, Math.round(at(moves[axis]) / step) * step))
      change[name] = Object.assign([...(change[name] ?? settingsNow()[name])], { [index]: value })
    }
    choose(change)
  }
  // Where in the data a pointer is.
  const under = (svg, axis, pixel) => {
    const [low, high, start, stop] = JSON.parse(svg.dataset.axes)[axis]
    const { left, top, width } = svg.getBoundingClientRect()
    const inside = ((pixel - (axis === "x" ? left : top)) * svg.viewBox.baseVal.width) / width
    return low + ((inside - start) / (stop - start)) * (high - low)
  }
  // Or the page scrolls, and the drag ends: Chromium heeds no touch-action on a shape.
  box.addEventListener("touchstart", (event) => event.target.matches(".handle") && event.preventDefault(), { passive: false })
  box.addEventListener("pointerdown", (event) => {
    if (!event.target.matches(".handle")) return
    event.preventDefault()
    held = event.target
    held.focus()
    held.setPointerCapture(event.pointerId)
  })
  box.addEventListener("pointermove", ({ clientX, clientY }) => {
    const svg = held?.ownerSVGElement
    if (svg) move(held, { x: () => under(svg, "x", clientX), y: () => under(svg, "y", clientY) })
  })
  for (const end of ["pointerup", "pointercancel"]) box.addEventListener(end, () => (held = undefined))
  box.addEventListener("keydown", (event) => {
    if (!event.target.matches(".handle") || !(event.key in keys)) return
    event.preventDefault()
    const [axis, sign] = keys[event.key]
    const now = ([name, index]) => settingsNow()[name][index]
    // A page without a kernel may have larger steps.
    const before = settingsNow()
    for (let n = 1; n <= 8 && same(before, settingsNow()); n++) move(event.target, { [axis]: (m) => now(m) + n * sign * (m[5] ?? m[4]) })
  })
}

// What says something when one points at it or goes there with the arrow keys, and may choose something by a click.
// Returns a function to be called for every new page.
function tips(box, page, choose) {
  const tip = add(box, "div", { class: "tip", role: "status", hidden: "" })
  let shown
  const show = (node) => {
    shown = node?.closest("[data-tip]")
    tip.hidden = !shown
    if (!shown) return
    tip.textContent = shown.dataset.tip
    const [at, around] = [shown.getBoundingClientRect(), box.getBoundingClientRect()]
    const left = at.left + at.width / 2 - around.left - tip.offsetWidth / 2
    tip.style.left = `${Math.max(4, Math.min(left, around.width - tip.offsetWidth - 4))}px`
    tip.style.top = `${at.top - around.top - tip.offsetHeight - 6}px`
  }
  const places = (svg) => [...svg.querySelectorAll("[data-tip]")]
  const centre = (node) => {
    const { left, top, width, height } = node.getBoundingClientRect()
    return [left + width / 2, top + height / 2]
  }
  const keys = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }
  page.addEventListener("keydown", (event) => {
    const node = event.target.closest("[data-tip]")
    if (!node) return
    if ([" ", "Enter"].includes(event.key) && node.dataset.choose) choose(JSON.parse(node.dataset.choose))
    else if (event.key === "Escape") show()
    else if (event.key in keys) {
      const [[right, down], [x, y]] = [keys[event.key], centre(node)]
      const far = (other) => {
        const [dx, dy] = [centre(other)[0] - x, centre(other)[1] - y]
        const along = dx * right + dy * down
        return along > 1 ? along + 3 * Math.abs(dx * down + dy * right) : Infinity
      }
      const next = places(node.ownerSVGElement).reduce((a, b) => (far(b) < far(a) ? b : a))
      if (far(next) < Infinity) next.focus()
    } else return
    event.preventDefault()
  })
  page.addEventListener("focusin", ({ target }) => {
    const node = target.closest("[data-tip]")
    if (node) for (const other of places(node.ownerSVGElement)) other.tabIndex = other === node ? 0 : -1
    show(node)
  })
  page.addEventListener("focusout", () => show())
  page.addEventListener("pointerover", ({ target }) => show(target))
  // A finger leaves as soon as it is lifted: what it has tapped stays named.
  page.addEventListener("pointerout", ({ pointerType }) => pointerType === "touch" || show())
  page.addEventListener("click", ({ target }) => {
    const node = target.closest("[data-choose]")
    if (node) choose(JSON.parse(node.dataset.choose))
  })
  return () => {
    for (const svg of page.querySelectorAll("svg")) {
      const every = places(svg)
      every.forEach((node) => {
        node.setAttribute("aria-label", node.dataset.tip)
        node.setAttribute("role", node.dataset.choose ? "button" : "img")
      })
      if (every.length && !every.some((node) => node.tabIndex === 0)) every[0].tabIndex = 0
    }
    if (shown) page.contains(shown) ? show(shown) : show()
  }
}

// While the answer to what was asked is on its way, what is wanted next waits; only the last of it is sent.
function render({ model, el }) {
  const box = add(el, "div", { class: "explorer" })
  const row = add(box, "div", { class: "controls" })
  const page = add(box, "div", { class: "pages" })
  const note = add(box, "p", { class: "computing", role: "status", hidden: "" })
  let waiting, asked, wanted, still
  const say = (text) => Object.assign(note, { hidden: false, textContent: text })
  const settingsNow = () => wanted ?? asked ?? model.get("state").settings
  const send = () => {
    waiting = setTimeout(() => {
      say("computing \u2026")
      waiting = setTimeout(say, LOST_MS, "no answer: run this cell again")
    }, LONG_MS)
    ;[asked, wanted] = [wanted, undefined]
    model.set("settings", { ...asked, at: Date.now() }) // Asked for what it has, a model would not answer.
    model.save_changes()
  }
  const choose = (change) => {
    const { settings, ends } = model.get("state")
    const stay = Object.keys(ends).filter((name) => !(name in change) && settings[name] === ends[name])
    const chosen = { ...settingsNow(), ...change }
    if (same(chosen, settingsNow())) return
    wanted = { ...chosen, ...Object.fromEntries(stay.map((name) => [name, AT_END])) }
    if (!waiting) send()
  }
  const shows = model.get("controls").map((description) => control(row, description, choose))
  drags(box, settingsNow, choose)
  const announce = tips(box, page, choose)
  const update = () => {
    const state = model.get("state")
    const next = page.cloneNode(false)
    next.innerHTML = state.html
    become(page, next)
    for (const show of shows) show(state)
    announce()
    for (const node of box.querySelectorAll("input, select, button, summary, [tabindex]")) node.setAttribute(OWN_KEYS, "true")
  }
  model.on("change:state", () => {
    clearTimeout(waiting)
    clearTimeout(still)
    waiting = asked = undefined
    note.hidden = true
    update()
    if (model.get("state").lacks) still = setTimeout(say, STILL_MS, "this page holds only some settings, JupyterLab all")
    if (wanted) send()
  })
  update()
}

// How far two settings are apart: numbers by their difference, everything else by being another.
const apart = (a, b) => {
  if (typeof a === "number" && typeof b === "number") return Math.abs(a - b)
  if (!Array.isArray(a) || !Array.isArray(b)) return same(a, b) ? 0 : 1
  return a.length === b.length ? a.reduce((sum, item, i) => sum + apart(item, b[i]), 0) : AT_END
}

// What a page without a kernel holds, from JSON that was compressed and written in base64.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json()
}

// What a page's address says of an explorer: "#name?setting=JSON&...", as far as it can be read.
function linked(name, start) {
  const [place, query] = location.hash.slice(1).split("?")
  const found = {}
  for (const [key, text] of new URLSearchParams(place === name ? query : "")) {
    try {
      if (key in start) found[key] = JSON.parse(text)
    } catch {} // of what cannot be read, the start stays
  }
  return found
}

// Stands in for the model where there is no kernel. Its name is that of a place in the page; what is chosen goes into the
// address, so that one can send it to somebody. Of the states that were written beforehand it finds the nearest one
// to what is chosen: what was changed counts most, then sliders that stay at their ends, then the rest.
function written({ pieces, states, controls, start }, name) {
  const listeners = []
  let [state, later] = []
  const to = (asked) => {
    const rank = (name) => (asked[name] === AT_END ? 1 : state && !same(asked[name], state.settings[name]) ? 0 : 2)
    const ranks = [0, 1, 2].map((one) => Object.keys(start).filter((name) => rank(name) === one))
    const costs = ({ settings }) => ranks.map((of) => of.reduce((sum, name) => sum + apart(asked[name], settings[name]), 0))
    const closer = (a, b) => a.map((cost, i) => cost - b[i]).find((difference) => difference) < 0
    const every = states.map((one) => [costs(one), one])
    const [, found] = every.reduce((best, one) => (closer(one[0], best[0]) ? one : best))
    state = { ...found, lacks: same(found.settings, state?.settings), html: found.html.map((piece) => pieces[piece]).join("") }
  }
  const link = () => {
    const chosen = Object.entries(state.settings).filter(([key, value]) => !same(value, start[key]))
    const query = new URLSearchParams(chosen.map(([key, value]) => [key, JSON.stringify(value)]))
    history.replaceState(null, "", `#${name}?${query}`)
  }
  to(start)
  to({ ...start, ...linked(name, start) })
  if (location.hash.startsWith(`#${name}?`)) document.getElementById(name).scrollIntoView()
  return {
    get: (key) => ({ state, controls })[key],
    set: (_, asked) => to(asked),
    save_changes: () => {
      clearTimeout(later)
      later = setTimeout(link, 300) // not at every step of a drag: browsers allow a hundred changes in half a minute
      listeners.forEach((listener) => listener())
    },
    on: (_, listener) => listeners.push(listener),
  }
}

export default { render }
