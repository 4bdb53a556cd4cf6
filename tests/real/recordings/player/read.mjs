// Prints what asciinema's web player reads of an asciicast, as JSON: node read.mjs FILE
//
// The player has a function for it that it does not export, so this imports a copy of its module with one more export. The
// version is fixed in package-lock.json.
import fs from 'node:fs';

const dist = new URL('node_modules/asciinema-player/dist/', import.meta.url);
const core = fs.readdirSync(dist).find((name) => /^core-[^.]*\.js$/.test(name));
const source = fs.readFileSync(new URL(core, dist), 'utf8');
const parser = source.match(/^async function (parse\S*)\(data\) \{\n\s*if \(data instanceof Response\)/m);
if (parser === null) {
  throw new Error(`no parser of asciicasts in ${core}`);
}
const copy = new URL(`with-parser-${process.pid}.mjs`, dist);
fs.writeFileSync(copy, `${source}\nexport { ${parser[1]} as parseAsciicast };\n`);
try {
  const { parseAsciicast } = await import(copy.href);
  const { cols, rows, events } = await parseAsciicast(new Response(fs.readFileSync(process.argv[2])));
  console.log(JSON.stringify({ cols, rows, events: Array.from(events) }));
} finally {
  fs.unlinkSync(copy);
}
