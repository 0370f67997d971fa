package nn

import (
	"fmt"
	"strings"
)

// LayerSummary describes a layer, as far as it is known without an input.
type LayerSummary struct {
	Name   string   // full dotted name
	Type   string   // the Go type, without its package
	Shapes []string // of each parameter: "weight [512 64]"
	// Parameters counts trainable elements; those of a shared parameter count in the first layer
	// that has it
	Parameters int64
	Bytes      int64 // of parameters and buffers, counted alike
}

// Summary lists the layers of m, with nested Sequentials flattened as a balance counts them, and
// before them m itself where it has parameters of its own. Nothing needs to be materialised.
func Summary(m Module) []LayerSummary {
	return m.node().summary()
}

// String is a table of the module's layers: names, types, shapes, trainable parameters, and bytes
// of parameters and buffers. A model prints itself: fmt.Println(model).
func (b *Base) String() string {
	total := LayerSummary{}
	table := [][]string{{"layer", "type", "shapes", "parameters", "bytes"}}
	layers := b.summary()
	for _, l := range layers {
		shapes := strings.Join(l.Shapes, ", ")
		if len(l.Shapes) > 3 {
			shapes = fmt.Sprintf("%d tensors", len(l.Shapes))
		}
		table = append(table, []string{l.Name, l.Type, shapes, fmt.Sprint(l.Parameters), fmt.Sprint(l.Bytes)})
		total.Parameters += l.Parameters
		total.Bytes += l.Bytes
	}
	count := fmt.Sprintf("%d layers", len(layers))
	if len(layers) == 1 {
		count = "1 layer"
	}
	return aligned(append(table, []string{"", count, "", fmt.Sprint(total.Parameters), fmt.Sprint(total.Bytes)}))
}

// aligned sets words to the left and numbers, which are the last two columns, to the right.
func aligned(table [][]string) string {
	width := make([]int, len(table[0]))
	for _, row := range table {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	lines := make([]string, len(table))
	for k, row := range table {
		cells := make([]string, len(row))
		for i, cell := range row {
			if i < len(row)-2 {
				width[i] = -max(width[i], -width[i])
			}
			cells[i] = fmt.Sprintf("%*s", width[i], cell)
		}
		lines[k] = strings.Join(cells, "  ")
	}
	return strings.Join(lines, "\n")
}

func (b *Base) summary() []LayerSummary {
	s := summary{first: map[*Param]string{}}
	if len(b.params) > 0 {
		s.add(LayerSummary{}, b.params)
	}
	for _, c := range b.children {
		s.layers(c.name, c.m)
	}
	return s.out
}

// summary gathers the layers of a module. first is the layer in which a parameter came first.
type summary struct {
	out   []LayerSummary
	first map[*Param]string
}

// layers adds a layer, or the layers of a Sequential.
func (s *summary) layers(name string, m Module) {
	if nested, ok := m.(*Sequential); ok {
		for _, c := range nested.children {
			s.layers(join(name, c.name), c.m)
		}
		return
	}
	var params []named
	walk(m, "", func(name string, p *Param) { params = append(params, named{name, p}) })
	of := typeOf(m)
	s.add(LayerSummary{Name: name, Type: of[strings.LastIndexByte(of, '.')+1:]}, params)
}

// add counts what a layer has for the first time.
func (s *summary) add(l LayerSummary, params []named) {
	for _, n := range params {
		owner := n.p.Owner()
		first, known := s.first[owner]
		if !known {
			s.first[owner] = l.Name
			l.Bytes += owner.Bytes()
			if owner.Trainable() {
				l.Parameters += owner.Numel()
			}
		}
		switch {
		case n.p.IsBuffer():
		case known && first != l.Name:
			l.Shapes = append(l.Shapes, n.name+" shared with "+first)
		case !owner.Trainable():
			l.Shapes = append(l.Shapes, fmt.Sprintf("%s %v frozen", n.name, n.p.Shape()))
		default:
			l.Shapes = append(l.Shapes, fmt.Sprintf("%s %v", n.name, n.p.Shape()))
		}
	}
	s.out = append(s.out, l)
}
