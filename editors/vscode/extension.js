// Starts `stagec lsp` for files of stagec.
const { workspace } = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

function activate() {
  const settings = workspace.getConfiguration("stagec");
  const run = { command: settings.get("command"), args: ["lsp"], transport: TransportKind.stdio };
  const plan = settings.get("plan");
  client = new LanguageClient("stagec", "stagec", run, {
    documentSelector: [{ language: "stg" }],
    initializationOptions: plan ? { plan } : {},
  });
  return client.start();
}

function deactivate() {
  return client && client.stop();
}

module.exports = { activate, deactivate };
