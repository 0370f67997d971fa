package torch

import (
	"strings"
	"testing"
)

// Every typed method relies on a name, an overload and a list of arguments. The linked libtorch must have the operator, begin its
// argument list with ours (same names, compatible types) and have defaults for the rest.
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

// normal drops what may differ between versions without changing a call: SymInt for int, the spelling of defaults.
func normal(a string) string {
	a, _, _ = strings.Cut(a, "=")
	return strings.ReplaceAll(a, "SymInt", "int")
}
