// What the tests in a browser ask a page: run there after it is loaded, never part of it.

document.querySelectorAll("details").forEach(one => { one.open = true; });

const shown = one => one.checkVisibility() && one.getClientRects().length > 0;
const all = selector => [...document.querySelectorAll(selector)];

function box(one) {
  const { x, y, width, height } = one.getBoundingClientRect();
  return { x, y: y + scrollY, width, height };
}

// Where things are.
function look() {
  const wide = at => at.x < -0.5 || at.x + at.width > innerWidth + 0.5;
  return {
    window: innerWidth,
    page: document.documentElement.scrollWidth,
    wide: all("body *").filter(one => shown(one) && wide(box(one))).map(one => one.outerHTML.slice(0, 200)),
    pictures: all("figure > svg").map(one => ({ kind: one.getAttribute("class"), shown: shown(one), ...box(one) })),
    texts: all("figure > svg text").filter(one => shown(one) && one.textContent).map(one => {
      const picture = box(one.ownerSVGElement);
      // Without a view box a drawing is as large as it says.
      const drawn = one.ownerSVGElement.viewBox.baseVal?.width;
      const scale = drawn ? picture.width / drawn : 1;
      const size = parseFloat(getComputedStyle(one).fontSize) * scale;
      return { text: one.textContent, picture, size, ...box(one) };
    }),
    cells: all("figure > svg .cell").filter(shown).map(one => ({
      target: one.dataset.target,
      runs: one.dataset.runs,
      letter: one.querySelector("text").textContent,
      title: one.querySelector("title").textContent,
      ...box(one.querySelector("rect.run")),
    })),
  };
}

// The pixels of a screenshot along the lower edge of each box, which no letter reaches.
async function painted(picture, boxes) {
  const image = new Image();
  image.src = `data:image/png;base64,${picture}`;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const drawing = canvas.getContext("2d");
  drawing.drawImage(image, 0, 0);
  return boxes.map(({ x, y, width, height }) => {
    const line = drawing.getImageData(Math.round(x) + 4, Math.round(y + height) - 5, Math.floor(width) - 8, 1).data;
    return Array.from({ length: line.length / 4 }, (_, at) => [...line.slice(4 * at, 4 * at + 3)]);
  });
}

// Every text with its colour and with what is painted under it: in a drawing the last shapes before it that hold its
// centre, stripes and all; elsewhere the background of the nearest element that has one.
function texts() {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (node.data.trim() && shown(element) && !element.closest("title")) {
      const style = getComputedStyle(element);
      const colour = element.ownerSVGElement ? style.fill : style.color;
      found.push({ text: node.data.trim().slice(0, 60), colour, grounds: grounds(node, element) });
    }
  }
  return found;
}

const solid = colour => colour !== "none" && colour !== "rgba(0, 0, 0, 0)";

function grounds(node, element) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const at = range.getBoundingClientRect();
  const x = at.x + at.width / 2, y = at.y + at.height / 2;
  const below = [...(element.ownerSVGElement?.querySelectorAll("rect, path, circle") ?? [])].filter(shape => {
    const edge = shape.getBoundingClientRect();
    return shape.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING && !shape.closest("defs")
      && solid(getComputedStyle(shape).fill)
      && edge.left < x && x < edge.right && edge.top < y && y < edge.bottom;
  });
  if (below.length) return below.slice(-2).map(colourOf);
  let parent = element;
  while (!solid(getComputedStyle(parent).backgroundColor)) parent = parent.parentElement;
  return [getComputedStyle(parent).backgroundColor];
}

function colourOf(shape) {
  const { fill } = getComputedStyle(shape);
  return fill.startsWith("url") ? getComputedStyle(shape.ownerSVGElement.querySelector(".stripe")).stroke : fill;
}
