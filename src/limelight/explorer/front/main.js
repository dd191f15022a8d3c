// The page that the server sends: its data comes from the server.
import { start } from "./app.js";
import { ServerSource } from "./data.js";

start(document.getElementById("limelight"), new ServerSource());
