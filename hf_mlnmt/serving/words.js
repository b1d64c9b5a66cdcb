// A word of the translation is chosen, by the pointer or Enter; what can stand in its place comes as a list.
const words = () => [...document.querySelectorAll("#out .best .word")];
const options = () => [...element.querySelectorAll("[role=option]")];
const isWord = (target) => target.closest?.("#out .best .word");
let asked = null; // the word that others were asked for
let back = null; // the place to go to when the translation has changed

const ask = (word) => {
  asked?.classList.remove("asked");
  asked = word;
  word.classList.add("asked");
  trigger("select", { at: Number(word.dataset.atWord) });
};
const leave = () => {
  props.value = "";
  asked?.classList.remove("asked");
  if (asked?.isConnected) go(asked, words());
  asked = null;
};
const go = (to, among) => {
  if (!to) return;
  among.forEach((other) => (other.tabIndex = other === to ? 0 : -1));
  to.focus();
};
const take = (option) => {
  back = Number(asked?.dataset.atWord ?? 0);
  asked = null;
  props.value = "";
  trigger("submit", { sentence: Number(option.dataset.sentence), begins: option.dataset.begins });
};

document.addEventListener("click", (event) => {
  const word = isWord(event.target);
  if (word && !window.getSelection().toString()) ask(word);
});
element.addEventListener("click", (event) => {
  const option = event.target.closest("[role=option]");
  if (option) take(option);
});
document.addEventListener("keydown", (event) => {
  const word = isWord(event.target);
  const option = element.contains(event.target) && event.target.closest("[role=option]");
  if (event.key === "Escape" && (asked || option)) return leave();
  if (!word && !option) return;
  const among = word ? words() : options();
  const at = among.indexOf(word || option);
  const forward = getComputedStyle(word || option).direction === "rtl" ? -1 : 1;
  const to = {
    ArrowRight: at + forward, ArrowLeft: at - forward, ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: among.length - 1,
  }[event.key];
  if (to !== undefined) go(among[Math.max(0, Math.min(to, among.length - 1))], among);
  else if (event.key === "Enter" || event.key === " ") word ? ask(word) : take(option);
  else return;
  event.preventDefault();
});
watch("value", () => {
  const first = element.querySelector("[aria-selected=true]") ?? element.querySelector("[role=option]");
  if (first) go(first, options());
});
new MutationObserver(() => {
  if (back === null || document.querySelector("#out.busy")) return;
  const word = words().findLast((other) => Number(other.dataset.atWord) <= back);
  back = null;
  go(word, words());
}).observe(document.body, { subtree: true, attributeFilter: ["class"], childList: true });
