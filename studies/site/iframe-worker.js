// A page that is read as a file may start no worker: what the search would run in one runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source !== inner) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      });
      this.ready = new Promise((resolve) => {
        inner.document.write("<script>postMessage = (data) => parent.postMessage(data, '*')</script>");
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        inner.document.head.append(script);
        inner.document.close();
      });
    }
    postMessage(message) {
      const data = structuredClone(message);
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
