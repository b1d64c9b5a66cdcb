// The service worker of a static Space: keeps its files, so that it works without a network. Written by hf-mlnmt.
const NAME = /*NAME*/ "";
const FILES = /*FILES*/ {}; // name: bytes

async function keep() {
  const cache = await caches.open(NAME);
  const whole = Object.values(FILES).reduce((sum, size) => sum + size, 0);
  let kept = 0;
  for (const [name, size] of Object.entries(FILES)) {
    if (!(await cache.match(name))) await cache.add(new Request(name, { cache: "no-cache" }));
    kept += size;
    for (const client of await clients.matchAll({ includeUncontrolled: true })) client.postMessage({ kept: kept / whole });
  }
  for (const name of await caches.keys()) if (name.startsWith("hf-mlnmt-") && name !== NAME) await caches.delete(name);
  await skipWaiting();
}

addEventListener("install", (event) => event.waitUntil(keep()));
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== location.origin) return;
  event.respondWith(
    caches.open(NAME).then(async (cache) => (await cache.match(event.request, { ignoreSearch: true })) ?? fetch(event.request)),
  );
});
