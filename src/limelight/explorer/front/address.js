// Every view has an address that restores it: #room?name=value&…

/** The state that an address stands for. */
export function read(hash) {
  const [room, rest = ""] = decodeURI(hash.replace(/^#/, "")).split("?");
  const state = Object.fromEntries(new URLSearchParams(rest));
  return { ...state, room };
}

/** The address of a state; what is empty is left out. */
export function write({ room, ...state }) {
  const given = Object.entries(state).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const rest = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#${room}${rest ? `?${rest}` : ""}`;
}
