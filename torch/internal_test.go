package torch

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Every typed method relies on a name, an overload and a list of arguments. The linked libtorch
// must have the operator, begin its argument list with ours (same names, compatible types) and have
// defaults for the rest.
func TestDeclaredSchemasMatchTheLinkedLibtorch(t *testing.T) {
	if len(declarations) < 50 {
		t.Fatalf("only %d operators are declared", len(declarations))
	}
	for _, o := range declarations {
		linked, err := Schema(o.name, o.overload)
		if err != nil {
			t.Errorf("%s: %v", o.fullName(), err)
			continue
		}
		ours, theirs := arguments(o.declared), arguments(linked)
		if len(ours) > len(theirs) {
			t.Errorf("%s: we pass %d arguments, libtorch has %d: %s", o.fullName(), len(ours), len(theirs), linked)
			continue
		}
		for i, a := range ours {
			if normal(a) != normal(theirs[i]) {
				t.Errorf("%s: argument %d is %q, libtorch has %q", o.fullName(), i, a, theirs[i])
			}
		}
		for _, a := range theirs[len(ours):] {
			if !strings.Contains(a, "=") {
				t.Errorf("%s: libtorch wants %q, which has no default", o.fullName(), a)
			}
		}
		if normal(result(o.declared)) != normal(result(linked)) {
			t.Errorf("%s: returns %q, libtorch %q", o.fullName(), result(o.declared), result(linked))
		}
	}
}

// No operator of Penstock's own is called by its name alone, past the declarations that are checked
// above: Call is for operators of users' layers.
func TestOperatorsAreDeclared(t *testing.T) {
	files := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && name != ".." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "vendor" || name == "out"):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source := token.NewFileSet()
		file, err := parser.ParseFile(source, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files++
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Call" && !isPackage(f.X, "shim") {
					t.Errorf("%v calls an operator by its name; want a method of Ctx, with a declaration", source.Position(call.Pos()))
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("only %d files were read", files)
	}
}

// isPackage reports whether an expression is the name of a package.
func isPackage(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}

// arguments splits the argument list of a schema at its top-level commas.
func arguments(schema string) []string {
	_, list, _ := strings.Cut(schema, "(")
	list = list[:strings.LastIndex(list, ") ->")]
	var out []string
	depth, start := 0, 0
	for i, r := range list + "," {
		switch {
		case r == '(' || r == '[':
			depth++
		case r == ')' || r == ']':
			depth--
		case r == ',' && depth == 0:
			if a := strings.TrimSpace(list[start:i]); a != "*" && a != "" {
				out = append(out, a)
			}
			start = i + 1
		}
	}
	return out
}

func result(schema string) string { return schema[strings.LastIndex(schema, "->"):] }

// normal drops what may differ between versions without changing a call: SymInt for int, the
// spelling of defaults.
func normal(a string) string {
	a, _, _ = strings.Cut(a, "=")
	return strings.ReplaceAll(a, "SymInt", "int")
}

// Who asks for errors of communicators while they are closed waits for nothing: it is who would call Abort,
// which alone may end Close.
func TestNCCLErrWhileItCloses(t *testing.T) {
	n := &NCCL{}
	n.mu.Lock() // as Close does until moves are done
	defer n.mu.Unlock()
	for _, row := range []struct {
		stop int32
		want error
	}{{0, nil}, {1, ErrNCCLClosed}} {
		n.stop.Store(row.stop)
		got := make(chan error, 1)
		go func() { got <- n.Err() }()
		select {
		case err := <-got:
			if !errors.Is(err, row.want) {
				t.Errorf("with stop %d: %v; want %v", row.stop, err, row.want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("with stop %d it waits for Close", row.stop)
		}
	}
}
