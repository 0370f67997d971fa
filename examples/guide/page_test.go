package guide_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const page = "../../docs/guide.md"

// fenced is a block of the page between ``` and ```.
type fenced struct {
	line     int
	language string
	text     string // each line with its end
}

// read returns the page's blocks, and the page without them.
func read(t *testing.T) (blocks []fenced, prose string) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var rest strings.Builder
	open := false
	for i, line := range strings.SplitAfter(string(data), "\n") {
		language, fence := strings.CutPrefix(strings.TrimRight(line, "\n"), "```")
		switch {
		case fence && !open:
			blocks = append(blocks, fenced{line: i + 1, language: language})
			open = true
		case fence:
			open = false
		case open:
			blocks[len(blocks)-1].text += line
		default:
			rest.WriteString(line)
		}
	}
	if open {
		t.Fatalf("%s:%d: the block does not end", page, blocks[len(blocks)-1].line)
	}
	return blocks, rest.String()
}

// source is this folder's code, file by file.
func source(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = "\n" + string(data)
	}
	return out
}

// prefixed puts a prefix before every line that is not empty, as gofmt indents.
func prefixed(text, prefix string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if strings.TrimSpace(line) != "" {
			lines[i] = prefix + line
		}
	}
	return strings.Join(lines, "")
}

// occurs says whether the lines are in the code as they are, or further in: out of a function, or of a loop within it.
func occurs(code, lines string) bool {
	for range 4 {
		if strings.Contains(code, "\n"+lines) {
			return true
		}
		lines = prefixed(lines, "\t")
	}
	return false
}

// comment is the output that an example must have, as its code says it.
func comment(output string) string { return "\t// Output:\n" + prefixed(output, "\t// ") + "}\n" }

// A block of Go is a run of whole lines of the code; a block of text is the whole output of an example.
func TestPageShowsCodeThatRuns(t *testing.T) {
	code := ""
	for _, text := range source(t) {
		code += text
	}
	blocks, _ := read(t)
	count := map[string]int{}
	for _, b := range blocks {
		count[b.language]++
		switch b.language {
		case "go":
			if !occurs(code, b.text) {
				t.Errorf("%s:%d: no file here has these lines:\n%s", page, b.line, b.text)
			}
		case "text":
			if !strings.Contains(code, "\n"+comment(b.text)) {
				t.Errorf("%s:%d: no example here has this output:\n%s", page, b.line, b.text)
			}
		case "sh":
		default:
			t.Errorf("%s:%d: a block of %q; want go, text (an example's output) or sh", page, b.line, b.language)
		}
	}
	if count["go"] < 20 || count["text"] < 10 {
		t.Errorf("%s has %v blocks: they are not found", page, count)
	}
}

// Every example is run, which takes an output to compare with, and is on the page.
func TestPageShowsEveryExample(t *testing.T) {
	blocks, _ := read(t)
	for name, text := range source(t) {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, example := range doc.Examples(file) {
			if example.Output == "" {
				t.Errorf("%s: Example%s has no output and is only compiled", name, example.Name)
			}
			_, body, _ := strings.Cut(text, "\nfunc Example"+example.Name+"() {\n")
			body, _, _ = strings.Cut(body, "\n}\n")
			body = "\n" + body + "\n}\n"
			if !slices.ContainsFunc(blocks, func(b fenced) bool { return occurs(body, b.text) || strings.HasSuffix(body, "\n"+comment(b.text)) }) {
				t.Errorf("%s: nothing of Example%s is on the page", name, example.Name)
			}
		}
	}
}

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	goName   = regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	link     = regexp.MustCompile(`\]\(([^)]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// What the prose calls by name, as `pipe.Config.Chunks`, exists.
func TestPageNamesWhatExists(t *testing.T) {
	_, prose := read(t)
	known := map[string]map[string]bool{}
	count := 0
	for _, span := range codeSpan.FindAllStringSubmatch(prose, -1) {
		for _, name := range goName.FindAllStringSubmatch(span[1], -1) {
			folder := filepath.Join("../..", name[1])
			if _, err := os.Stat(folder); err != nil {
				continue // no package of ours: another language's, or a variable
			}
			if known[name[1]] == nil {
				known[name[1]] = exported(t, folder)
			}
			full := name[2]
			if name[3] != "" {
				full += "." + name[3]
			}
			if count++; !known[name[1]][full] {
				t.Errorf("%s: `%s`: package %s has no %s", page, span[1], name[1], full)
			}
		}
	}
	if count < 30 {
		t.Errorf("%d names were checked: they are not found", count)
	}
}

// exported lists a package's exported names: functions, values, types, and the types' fields and methods as Type.Name.
func exported(t *testing.T, folder string) map[string]bool {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				prefix := ""
				if d.Recv != nil {
					prefix = receiver(d.Recv.List[0].Type) + "."
				}
				out[prefix+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					declared(out, s)
				}
			}
		}
	}
	return out
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func declared(out map[string]bool, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			out[n.Name] = true
		}
	case *ast.TypeSpec:
		out[s.Name.Name] = true
		var members *ast.FieldList
		switch body := s.Type.(type) {
		case *ast.StructType:
			members = body.Fields
		case *ast.InterfaceType:
			members = body.Methods
		default:
			return
		}
		for _, m := range members.List {
			for _, n := range m.Names {
				out[s.Name.Name+"."+n.Name] = true
			}
		}
	}
}

// Links lead to files of the repository, or to headings of the page.
func TestPageLinksLeadSomewhere(t *testing.T) {
	_, prose := read(t)
	anchors := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(prose, -1) {
		slug := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(h[1]), "")
		anchors["#"+strings.ReplaceAll(slug, " ", "-")] = true
	}
	for _, l := range link.FindAllStringSubmatch(prose, -1) {
		switch target := l[1]; {
		case strings.HasPrefix(target, "https://"):
		case strings.HasPrefix(target, "#"):
			if !anchors[target] {
				t.Errorf("%s: no heading for %s", page, target)
			}
		default:
			file, _, _ := strings.Cut(target, "#")
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), file)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}
