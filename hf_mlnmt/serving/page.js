// Of a map of attention: the word of the translation under the pointer, or with the focus, lights up its source.
const light = (event) => {
  const chosen = event.target.closest?.("[data-w]");
  if (!chosen) return;
  const figure = chosen.closest("figure");
  const [first, last] = chosen.dataset.rows.split(" ").map(Number);
  const weights = chosen.dataset.w.split(" ");
  figure.querySelectorAll("[data-at]").forEach((piece) => piece.style.setProperty("--w", weights[piece.dataset.at]));
  figure.querySelectorAll("[data-w]").forEach((other) => {
    const [from, to] = other.dataset.rows.split(" ").map(Number);
    other.classList.toggle("lit", from <= last && to >= first);
    if (other.matches("button.lit")) figure.querySelector(".says").textContent = other.dataset.says;
  });
};
element.addEventListener("pointerover", light);
element.addEventListener("focusin", light);
element.addEventListener("click", light);

// The button of a translation copies it; without a secure origin browsers have only the old way.
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: button.dataset.copy });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
});
