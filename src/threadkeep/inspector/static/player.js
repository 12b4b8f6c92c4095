// The slider over time. The next places are fetched before they are needed, and a place that was shown is kept for a
// while; so playing waits for nothing, and moving back and forth asks for nothing.
import { byId, fetchPage, problemIn } from "./pages.js";

const PLAY_MS = 900, AHEAD = 2, KEPT = 60;

export class Player {
  constructor(form) {
    this.form = form;
    this.slider = byId("input[type=range]", form);
    this.toggle = byId("[data-toggle]", form);
    this.speed = byId("[data-speed]", form);
    this.output = byId("output", form);
    this.stages = new Map();
    this.toggle.addEventListener("click", () => this.isPlaying ? this.pause() : this.play());
    this.slider.addEventListener("input", () => { this.pause(); this.show(this.at); });
    this.fetchAhead(this.at);
  }

  get at() { return Number(this.slider.value); }
  get last() { return Number(this.slider.max); }

  urlOf(at) {
    const fields = new FormData(this.form);
    fields.set("at", at);
    return `${this.form.action}?${new URLSearchParams(fields)}`;
  }

  // The part of the page that shows a place.
  stage(at) {
    if (!this.stages.has(at)) {
      const fetched = fetchPage(this.urlOf(at)).then((page) => byId(this.form.dataset.play, page) ?? problemIn(page));
      fetched.catch(() => this.stages.delete(at)); // it is tried again when it is needed
      this.stages.set(at, fetched);
      if (this.stages.size > KEPT) this.stages.delete(this.stages.keys().next().value);
    }
    return this.stages.get(at);
  }

  fetchAhead(at) { for (let next = at + 1; next <= Math.min(at + AHEAD, this.last); next += 1) this.stage(next); }

  // Show a place. While one is fetched, others that are passed are left out.
  async show(at) {
    this.wanted = at;
    this.output.textContent = `${at + 1} of ${this.last + 1}`;
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      while (this.wanted !== undefined) {
        const place = this.wanted;
        this.wanted = undefined;
        const stage = await this.stage(place);
        if (stage) byId(this.form.dataset.play).replaceChildren(...document.importNode(stage, true).childNodes);
        history.replaceState(null, "", this.urlOf(place));
      }
    } finally { this.isLoading = false; }
    this.fetchAhead(at);
  }

  step(by) {
    const to = Math.min(Math.max(this.at + by, 0), this.last);
    if (to === this.at) return undefined;
    this.slider.value = String(to);
    return this.show(to);
  }

  async play() {
    const run = this.isPlaying = {};
    this.say("Pause");
    if (this.at === this.last) { this.slider.value = "0"; await this.show(0); }
    while (this.isPlaying === run && this.at < this.last) {
      await new Promise((done) => setTimeout(done, PLAY_MS / Number(this.speed?.value ?? 1)));
      if (this.isPlaying === run) await this.step(1);
    }
    if (this.isPlaying === run) this.pause();
  }

  pause() { this.isPlaying = undefined; this.say("Play"); }

  say(text) { this.toggle.textContent = text; this.toggle.setAttribute("aria-pressed", String(text === "Pause")); }
}
