package nn

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// LayerSummary describes a layer without running it.
type LayerSummary struct {
	Name   string   // full dotted name
	Type   string   // the Go type, without its package
	Shapes []string // of each parameter: "weight [512 64]"
	// Parameters is the number of trainable elements. A shared parameter counts in its first layer.
	Parameters int64
	Bytes      int64 // of parameters and buffers; a shared parameter counts in its first layer
}

// Summary lists the layers of m, with nested Sequentials flattened as a balance counts them. If m
// has parameters of its own, it is listed first. Nothing needs to be materialised.
func Summary(m Module) (all []LayerSummary) {
	first := map[*Param]string{} // the first layer of a parameter
	add := func(l LayerSummary, params []named) {
		for _, n := range params {
			owner := n.p.Owner()
			layer, known := first[owner]
			if !known {
				first[owner] = l.Name
				l.Bytes += owner.Bytes()
				if owner.Trainable() {
					l.Parameters += owner.Numel()
				}
			}
			switch {
			case n.p.IsBuffer():
			case known && layer != l.Name:
				l.Shapes = append(l.Shapes, n.name+" shared with "+layer)
			case !owner.Trainable():
				l.Shapes = append(l.Shapes, fmt.Sprintf("%s %v frozen", n.name, n.p.Shape()))
			default:
				l.Shapes = append(l.Shapes, fmt.Sprintf("%s %v", n.name, n.p.Shape()))
			}
		}
		all = append(all, l)
	}
	if params := m.node().params; len(params) > 0 {
		add(LayerSummary{}, params)
	}
	var visit func(prefix string, b *Base)
	visit = func(prefix string, b *Base) {
		for _, c := range b.children {
			name := join(prefix, c.name)
			if _, ok := c.m.(*Sequential); ok {
				visit(name, c.m.node())
				continue
			}
			var params []named
			walk(c.m, "", func(name string, p *Param) { params = append(params, named{name, p}) })
			kind := typeOf(c.m)
			add(LayerSummary{Name: name, Type: kind[strings.LastIndexByte(kind, '.')+1:]}, params)
		}
	}
	visit("", m.node())
	return all
}

// String returns Summary as a table, so that fmt.Println(model) prints it.
func (b *Base) String() string {
	total := LayerSummary{}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "layer\ttype\tshapes\tparameters\tbytes")
	layers := Summary(b)
	for _, l := range layers {
		shapes := strings.Join(l.Shapes, ", ")
		if len(l.Shapes) > 3 {
			shapes = fmt.Sprintf("%d tensors", len(l.Shapes))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\n", l.Name, l.Type, shapes, l.Parameters, l.Bytes)
		total.Parameters += l.Parameters
		total.Bytes += l.Bytes
	}
	fmt.Fprintf(w, "\t%d layers\t\t%d\t%d", len(layers), total.Parameters, total.Bytes)
	w.Flush()
	return text.String()
}
