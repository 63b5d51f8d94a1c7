/* -- the samples --------------------------------------------------------------------------- */

const KIND_CLASS = ["negative", "positive", "wrong_to_wrong", "changed"];
const sure = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
const icon = (section, kind) => {
  // The signs are those that the page was written with.
  const found = section.querySelector(`.mark.${kind} svg`) || document.querySelector(`.mark.${kind} svg`);
  return found ? found.cloneNode(true) : "";
};

class Samples {
  constructor(section) {
    this.section = section;
    this.data = JSON.parse(document.getElementById(section.dataset.flips).textContent);
    this.filters = section.querySelector(".filters");
    if (!this.filters) return;
    this.body = section.querySelector("tbody");
    this.rows = this.data.id.map((_, i) => i);
    this.marks = new Map(KIND_CLASS.map((kind) => [kind, icon(section, kind)]));
    this.state = { kind: -1, target: -1, groups: this.data.groups.map(() => -1), search: "", page: 0, key: "", sign: 1 };
    this.texts = null;
    this.controls();
    this.update();
  }

  controls() {
    const present = KIND_CLASS.map((_, k) => this.data.kind.filter((kind) => kind === k).length);
    const kinds = this.filters.querySelector(".kinds");
    const name = `${this.section.id}-kind`;
    const add = (value, text, n) => {
      const input = make("input", { type: "radio", name, value });
      if (value === -1) input.checked = true;
      input.addEventListener("change", () => this.set({ kind: value }));
      kinds.append(make("label", {}, input, `${text} ${count(n)}`));
    };
    add(-1, "all", this.rows.length);
    present.forEach((n, k) => { if (n) add(k, this.data.kinds[k], n); });
    const picks = this.filters.querySelector(".picks");
    this.selects = [this.select("Class", this.data.target, (value) => this.set({ target: value }))];
    this.data.groups.forEach((group, g) => {
      this.selects.push(this.select(group.name, group, (value) => {
        const groups = [...this.state.groups];
        groups[g] = value;
        this.set({ groups });
      }));
    });
    picks.append(...this.selects.map((select) => select.label));
    this.search = this.filters.querySelector("input[type=search]");
    this.search.addEventListener("input", () => this.set({ search: this.search.value.trim().toLowerCase() }));
    this.filters.querySelector(".reset").addEventListener("click", () => this.reset());
    this.filters.querySelector(".export").addEventListener("click", () => this.save());
    const turn = (step) => { this.state.page += step; this.draw(); };
    this.previous = this.section.querySelector(".previous");
    this.next = this.section.querySelector(".next");
    this.previous.addEventListener("click", () => turn(-1));
    this.next.addEventListener("click", () => turn(1));
    for (const header of all("thead th", this.section)) {
      if (!header.dataset.key) continue;
      headerButton(header, (direction) => this.set({
        key: direction === "none" ? "" : header.dataset.key,
        sign: direction === "descending" ? -1 : 1,
      }));
    }
  }

  select(text, column, onChange) {
    const tally = new Map();
    for (const code of column.codes) tally.set(code, (tally.get(code) || 0) + 1);
    const codes = [...tally.keys()].sort((a, b) => collator.compare(column.values[a], column.values[b]));
    const options = codes.map((code) => make("option", { value: code, dir: "auto" }, `${column.values[code]} (${count(tally.get(code))})`));
    const element = make("select", {}, make("option", { value: -1 }, "any"), ...options);
    element.addEventListener("change", () => onChange(Number(element.value)));
    return { element, label: make("label", {}, named(text), element) };
  }

  reset() {
    for (const select of this.selects) select.element.value = "-1";
    this.filters.querySelector(".kinds input").checked = true;
    this.search.value = "";
    for (const header of all("thead th[aria-sort]", this.section)) header.setAttribute("aria-sort", "none");
    this.set({ kind: -1, target: -1, groups: this.data.groups.map(() => -1), search: "", key: "", sign: 1 });
  }

  set(change) {
    Object.assign(this.state, change, { page: 0 });
    this.update();
  }

  text(i) {
    // Made when first searched: most readers never do.
    if (!this.texts) {
      const { data } = this;
      const items = data.samples && data.samples.kind !== "image" ? data.samples.items : {};
      this.texts = this.rows.map((row) => [
        data.id[row], this.name("target", row), this.name("old", row), this.name("new", row),
        ...data.groups.map((group) => group.values[group.codes[row]]), items[row] || "",
      ].join("\n").toLowerCase());
    }
    return this.texts[i];
  }

  name(column, row) { return this.data[column].values[this.data[column].codes[row]]; }

  value(key, row) {
    if (key === "id") return this.data.id[row];
    if (key === "kind") return this.data.kind[row];
    if (key.startsWith("group:")) {
      const group = this.data.groups[Number(key.slice(6))];
      return group.values[group.codes[row]];
    }
    if (key.endsWith("_confidence")) return this.data.confidences[key][row];
    return this.name(key, row);
  }

  update() {
    const { data, state } = this;
    this.chosen = this.rows.filter((i) =>
      (state.kind < 0 || data.kind[i] === state.kind)
      && (state.target < 0 || data.target.codes[i] === state.target)
      && state.groups.every((code, g) => code < 0 || data.groups[g].codes[i] === code)
      && (!state.search || this.text(i).includes(state.search)));
    if (state.key) {
      const values = new Map(this.chosen.map((i) => [i, this.value(state.key, i)]));
      this.chosen.sort((a, b) => ordered(values.get(a), values.get(b), state.sign) || a - b);
    }
    this.draw();
  }

  draw() {
    const total = this.chosen.length;
    const pages = Math.max(1, Math.ceil(total / PAGE));
    this.state.page = Math.min(Math.max(this.state.page, 0), pages - 1);
    const start = this.state.page * PAGE;
    const shown = this.chosen.slice(start, start + PAGE);
    this.body.replaceChildren(...shown.map((i) => this.row(i)));
    const of = total === this.rows.length ? "" : `, chosen from ${count(this.rows.length)}`;
    this.section.querySelector(".count").textContent = total
      ? `${count(start + 1)} to ${count(start + shown.length)} of ${count(total)}${of}` : `No sample matches${of}`;
    this.section.querySelector(".where").textContent = `page ${count(this.state.page + 1)} of ${count(pages)}`;
    this.previous.disabled = this.state.page === 0;
    this.next.disabled = this.state.page === pages - 1;
  }

  row(i) {
    const { data } = this;
    const cell = (label, content, attributes = {}) => make("td", { role: "cell", "data-label": label, ...attributes }, content);
    const kind = KIND_CLASS[data.kind[i]];
    const sign = this.marks.get(kind);
    const mark = make("span", { class: `mark ${kind}` }, sign ? sign.cloneNode(true) : "", data.kinds[data.kind[i]]);
    const cells = [];
    if (data.samples) cells.push(this.sample(i));
    cells.push(make("th", { scope: "row", role: "rowheader", "data-label": "id" }, named(data.id[i])));
    cells.push(cell("kind", mark), cell("target", named(this.name("target", i))), cell("old's answer", named(this.name("old", i))));
    if (data.confidences.old_confidence) cells.push(cell("old's confidence", sure(data.confidences.old_confidence[i]), { class: "number" }));
    cells.push(cell("new's answer", named(this.name("new", i))));
    if (data.confidences.new_confidence) cells.push(cell("new's confidence", sure(data.confidences.new_confidence[i]), { class: "number" }));
    for (const group of data.groups) cells.push(cell(group.name, named(group.values[group.codes[i]])));
    return make("tr", { role: "row" }, ...cells);
  }

  sample(i) {
    const item = this.data.samples.items[i];
    const kind = this.data.samples.kind;
    let content = make("span", { class: "soft" }, "–");
    if (item !== undefined && kind === "image" && item.startsWith("data:image/")) {
      content = make("img", { src: item, alt: `sample ${this.data.id[i]}`, width: 72 });
      content.addEventListener("load", () => { if (content.naturalWidth <= 48) content.className = "tiny"; });
    } else if (item !== undefined && kind === "link" && /^https?:\/\//i.test(item)) {
      content = make("a", { href: item, rel: "noopener noreferrer", target: "_blank" }, named(item));
    } else if (item !== undefined && kind === "text") {
      content = named(item, { class: "text" });
    }
    return make("td", { role: "cell", class: "sample" }, content);
  }

  csv() {
    const { data } = this;
    const confidences = Object.keys(data.confidences);
    const texts = data.samples && data.samples.kind !== "image";
    // A spreadsheet takes a cell that begins like this for a formula, and would run it.
    const guarded = (value) => {
      const text = value === null || value === undefined ? "" : String(value);
      return `"${(/^[=+\-@\t\r\n＝＋－＠]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
    };
    const header = ["id", "kind", "target", "old", "new", ...confidences, ...data.groups.map((group) => group.name), ...(texts ? ["sample"] : [])];
    const lines = this.chosen.map((i) => [
      data.id[i], KIND_CLASS[data.kind[i]], this.name("target", i), this.name("old", i), this.name("new", i),
      ...confidences.map((name) => data.confidences[name][i]),
      ...data.groups.map((group) => group.values[group.codes[i]]),
      ...(texts ? [data.samples.items[i]] : []),
    ]);
    return [header, ...lines].map((line) => line.map(guarded).join(",")).join("\r\n") + "\r\n";
  }

  save() {
    const address = URL.createObjectURL(new Blob(["\ufeff", this.csv()], { type: "text/csv;charset=utf-8" }));
    make("a", { href: address, download: "flips.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }
}
