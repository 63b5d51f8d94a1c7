/* -- tables -------------------------------------------------------------------------------- */

const collator = new Intl.Collator("en", { numeric: true });
// A text that is a number is sorted as one: a collator alone would put 0.25 after 0.5, and -2 after -1.
const amount = (value) => (typeof value === "number" ? value : /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(value) ? Number(value) : NaN);
const compared = (a, b) => {
  const [first, second] = [amount(a), amount(b)];
  const [noFirst, noSecond] = [Number.isNaN(first), Number.isNaN(second)];
  if (!noFirst && !noSecond) return first - second || collator.compare(String(a), String(b));
  // Numbers before words, so that a column of both still has one order.
  return noFirst !== noSecond ? noFirst - noSecond : collator.compare(String(a), String(b));
};
// What is missing comes last, whichever way a column is sorted.
const ordered = (a, b, sign) => {
  const [noA, noB] = [a === null || a === "", b === null || b === ""];
  return noA || noB ? noA - noB : sign * compared(a, b);
};

const headerButton = (header, onSort) => {
  const button = make("button", { type: "button" });
  button.append(...header.childNodes);
  header.append(button);
  header.setAttribute("aria-sort", "none");
  button.addEventListener("click", () => {
    const now = header.getAttribute("aria-sort");
    const first = header.classList.contains("number") ? "descending" : "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    const next = now === "none" ? first : now === first ? second : "none";
    for (const other of all("th[aria-sort]", header.parentElement)) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", next);
    onSort(next);
  });
};

const sortable = (table) => {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const value = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.value === undefined) return cell.textContent.trim();
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    if (!header.textContent.trim()) return;
    headerButton(header, (direction) => {
      const sign = direction === "descending" ? -1 : 1;
      const sorted = direction === "none" ? rows
        : [...rows].sort((a, b) => ordered(value(a, column), value(b, column), sign));
      body.append(...sorted);
      fold(table);
    });
  });
};

const fold = (table) => {
  const most = Number(table.dataset.fold || 0);
  if (!most) return;
  const open = table.dataset.open === "yes";
  [...table.tBodies[0].rows].forEach((row, i) => { row.hidden = !open && i >= most; });
};

const foldable = (table) => {
  const most = Number(table.dataset.fold);
  const total = table.tBodies[0].rows.length;
  if (total <= most + 3) { table.dataset.fold = "0"; return; }
  const button = make("button", { type: "button", class: "fold", "aria-expanded": "false" }, `Show all ${count(total)} rows`);
  button.addEventListener("click", () => {
    const open = table.dataset.open !== "yes";
    table.dataset.open = open ? "yes" : "no";
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? `Show the first ${most}` : `Show all ${count(total)} rows`;
    fold(table);
  });
  table.parentElement.after(button);
  fold(table);
};
