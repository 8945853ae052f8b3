// A page opened from the disk may start no worker. The search's runs in a hidden frame there instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inner.document.createElement("script")
      this.ready = new Promise(done => (script.onload = done)) // until then nobody listens
      script.src = url
      inner.document.head.append(script)
      this.inner = inner
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })))
    }
  }
