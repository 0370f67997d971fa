// --- tables ---

// Table fills a table from columns {title, note, value, cell, number, sort, head, wide, minor} and rows, which its
// headers sort. On a narrow page a row is a list below its head: wide columns have a line of their own, minor ones are
// left out.
class Table {
  constructor(table, columns, caption) {
    this.table = table; this.columns = columns; this.sorted = -1; this.down = false; this.caption = caption;
  }
  set(rows) { this.rows = rows; this.fill(); }
  filter(keep) { this.keep = keep; this.fill(); }
  fill() {
    let rows = this.keep ? this.rows.filter(this.keep) : this.rows.slice();
    const by = this.columns[this.sorted];
    if (by) {
      const sign = this.down ? -1 : 1;
      rows.sort((a, b) => {
        const x = by.value(a), y = by.value(b);
        return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
      });
    }
    const head = element("tr");
    this.columns.forEach((c, i) => {
      const mark = i === this.sorted ? (this.down ? " ▾" : " ▴") : "";
      const th = element("th", { scope: "col", className: [c.number && "number", c.minor && "minor"].filter(Boolean).join(" ") });
      if (c.sort === false) th.textContent = c.title;
      else {
        const b = element("button", { type: "button", className: "sort", textContent: c.title + mark, title: c.note || "" });
        b.addEventListener("click", () => { this.down = i === this.sorted ? !this.down : !!c.number; this.sorted = i; this.fill(); this.table.querySelectorAll("th button")[i]?.focus(); });
        th.append(b);
        th.setAttribute("aria-sort", i === this.sorted ? (this.down ? "descending" : "ascending") : "none");
      }
      head.append(th);
    });
    const body = element("tbody");
    for (const row of rows) {
      const tr = element("tr");
      this.columns.forEach((c, i) => {
        const td = element(i === 0 ? "th" : "td", { className: [c.number && "number", c.wide && "wide", c.minor && "minor", c.head && "head"].filter(Boolean).join(" ") });
        if (i === 0) td.scope = "row";
        td.dataset.title = c.title; // which a narrow page shows beside it
        const content = c.cell ? c.cell(row) : c.value(row);
        td.append(content instanceof Node ? content : String(content));
        tr.append(td);
      });
      body.append(tr);
    }
    this.table.replaceChildren(element("caption", { className: "sr", textContent: this.caption }), element("thead", {}, head), body);
    this.shown = rows.length;
  }
}

// bar is a text with a bar below it that fills a share of the cell.
function bar(text, share, colour) {
  const fill = element("i", { className: "fill" });
  fill.style.width = 100 * Math.max(0, Math.min(1, share)) + "%";
  if (colour) fill.style.background = `var(--${colour})`;
  return element("div", { className: "bar" }, element("span", { textContent: text }), element("span", { className: "track" }, fill));
}
