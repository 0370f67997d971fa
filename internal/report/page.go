package report

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"strings"

	"penstock.example/internal/metrics"
)

// Page is the data of a page.
type Page struct {
	Run     Run
	History metrics.History
	Curves  []Curve
}

// HTML returns the page, which needs no network and no other file.
func (p Page) HTML() ([]byte, error) {
	v, err := newView(p.Run)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return document(payload{View: v, History: newColumns(p.History, p.Run.From), Curves: p.Curves})
}

//go:embed page
var files embed.FS

// The page's style and script, the only ones that its policy allows, by their hashes.
var (
	template = file("page.html")
	style    = file("style.css")
	script   = "\"use strict\";\n(() => {\n" + file("format.js") + file("theme.js") + file("chart.js") +
		file("timeline.js") + file("table.js") + file("main.js") + "})();\n"
)

func file(name string) string {
	text, err := files.ReadFile("page/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// policy is the Content-Security-Policy of the page; connect is 'none' or 'self'.
func policy(connect string) string {
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; img-src data:; connect-src %s; "+
		"base-uri 'none'; form-action 'none'", hash(script), hash(style), connect)
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// document returns the page's HTML. encoding/json escapes <, > and &, so data cannot end its
// element.
func document(p payload) ([]byte, error) {
	data, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	connect := "'none'"
	if p.Live != "" {
		connect = "'self'"
	}
	return []byte(strings.NewReplacer("{{policy}}", html.EscapeString(policy(connect)), "{{style}}", style,
		"{{title}}", html.EscapeString(p.View.Title), "{{data}}", string(data), "{{script}}",
		script).Replace(template)), nil
}
