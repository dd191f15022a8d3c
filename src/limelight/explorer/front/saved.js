// A saved page: its data stands in the file itself.
import { start } from "./app.js";
import { FileSource } from "./data.js";

start(document.getElementById("limelight"), new FileSource(JSON.parse(document.getElementById("limelight-data").textContent)));
