// Parses each AsyncAPI document that is given and prints, as one JSON array, what the parser says of each.

import { readFile } from "node:fs/promises";
import { Parser } from "@asyncapi/parser";

const parser = new Parser();
const findings = [];
for (const path of process.argv.slice(2)) {
  const { document, diagnostics } = await parser.parse(await readFile(path, "utf8"));
  findings.push({
    version: document?.info().version() ?? null,
    channels: document?.channels().all().map((channel) => channel.id()) ?? [],
    operations: document?.operations().all().map((operation) => operation.id()) ?? [],
    messages: document?.messages().all().map((message) => message.id()) ?? [],
    diagnostics: diagnostics.map(({ severity, code, message, path: place }) => ({
      severity,
      text: `${code} at ${place.join(".")}: ${message}`,
    })),
  });
}
console.log(JSON.stringify(findings));
