// From a disk (file:) browsers start no workers, and search lives in one: there it runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((done) => { this.inside.begun = done; });
      const page = this.inside.document;
      page.open();
      page.write(
        "<script>postMessage = answer;" +
        "importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done, failed) => {" +
        "  const script = document.createElement('script');" +
        "  Object.assign(script, { src: url, onload: done, onerror: failed });" +
        "  document.head.append(script); })));</" + "script>" +
        `<script src="${new URL(url, location)}" onload="begun()"></` + "script>"
      );
      page.close();
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
