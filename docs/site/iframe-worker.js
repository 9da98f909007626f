// Search runs in a Worker, which browsers refuse to pages of file://. Those run it in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = (this.inside = frame.contentWindow);
      inside.answer = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.ready = new Promise((done) => { inside.started = done; });
      inside.document.open();
      inside.document.write(`<script>
        postMessage = (data) => answer(data);
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
          const script = document.createElement("script");
          script.src = url;
          script.onload = done;
          document.body.appendChild(script);
        })), Promise.resolve());
      </` + `script><body><script src="${url}" onload="started()"></` + "script></body>");
      inside.document.close();
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
