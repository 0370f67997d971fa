package report

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strings"

	"penstock.example/internal/arg"
	"penstock.example/metrics"
)

// Page is what a page shows.
type Page struct {
	Run     Run
	History metrics.History
	Curves  []Curve
	Step    *StepCurve // nil is not known
}

// Write writes the page. It needs no network, and no other file.
func Write(w io.Writer, p Page) error {
	if err := arg.Given(w, "report: Write: the writer", "what is to take the page"); err != nil {
		return err
	}
	v, err := newView(p.Run)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	text, err := document(payload{View: v, History: newColumns(p.History), Curves: p.Curves, Step: p.Step})
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	_, err = w.Write(text)
	return err
}

//go:embed page
var files embed.FS

// scripts are parts of one script, in order.
var scripts = []string{"format.js", "theme.js", "chart.js", "timeline.js", "table.js", "main.js"}

// The page's own style and script. A policy allows them by their hashes and nothing else.
var (
	template = file("page.html")
	style    = file("style.css")
	script   = joined()
)

func file(name string) string {
	text, err := files.ReadFile("page/" + name)
	if err != nil {
		panic(err) // it is a part of the program
	}
	return string(text)
}

func joined() string {
	var b strings.Builder
	b.WriteString("\"use strict\";\n(() => {\n")
	for _, name := range scripts {
		b.WriteString(file(name))
	}
	b.WriteString("})();\n")
	return b.String()
}

// policy is the Content-Security-Policy of the page; connect is 'none' or 'self'.
func policy(connect string) string {
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; img-src data:; connect-src %s; base-uri 'none'; form-action 'none'",
		hash(script), hash(style), connect)
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// document is the page's HTML. Data are JSON in which <, > and & are escaped, so none can end its
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
	var b bytes.Buffer
	rest := template
	for _, part := range []struct{ mark, text string }{
		{"{{policy}}", html.EscapeString(policy(connect))},
		{"{{title}}", html.EscapeString(p.View.Title)},
		{"{{style}}", style},
		{"{{data}}", string(data)},
		{"{{script}}", script},
	} {
		before, after, _ := strings.Cut(rest, part.mark)
		b.WriteString(before)
		b.WriteString(part.text)
		rest = after
	}
	b.WriteString(rest)
	return b.Bytes(), nil
}
