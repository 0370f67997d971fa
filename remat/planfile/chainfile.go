package planfile

import (
	"penstock.example/remat"
)

// The file of a chain, as JSON. Times are in microseconds, sizes in bytes:
//
//	{"version":1,"input_bytes":N,
//	"layers":[
//	{"name":"..","forward_us":F,"backward_us":F,"output_bytes":N,"saved_bytes":N,"forward_tmp_bytes":N,"backward_tmp_bytes":N},
//	...],
//	"loss":{"backward_us":F,"tmp_bytes":N}}
//
// Fields that may be left out, and what they are then: of a layer forward_nograd_us (forward_us),
// backward_later_us (backward_us),
// forward_nograd_tmp_bytes (forward_tmp_bytes), gradient_bytes (output_bytes),
// weight_gradient_bytes and backward_early_bytes (0); of the chain input_gradient_bytes
// (input_bytes), model, rows, threads and devices ("" and 0, not known), spread (0, not known), carries and gradient_carries, lists of {"from":-1,"to":3,"bytes":N} (none).
// A layer may have "deferred":{"bytes":N,"input":true,"output":false,"gradient":true,
// "input_gradient":false,"share":0.5,"longer_us":0.1}, as [remat.Deferred] says it, of which all fields may be left
// out. Where one layer has it, those that have none defer nothing; where none has it, it is not known.

// ParseChain reads a chain that [FormatChain] or a program of another make has written. The whole
// text is to be one chain as [remat.Chain.Check] wants it, without fields that it does not have:
// what is wrong is a [*SyntaxError], with the field's path, or a [*remat.ChainError]. ParseChain is
// safe on text from anywhere.
func ParseChain(data []byte) (remat.Chain, error) {
	var c remat.Chain
	err := readFile("chain", data, func(r *reader) error {
		seen, err := r.object([]field{
			{"version", false, (*reader).version},
			{"input_bytes", false, into((*reader).bytes, &c.Input)},
			{"input_gradient_bytes", true, into((*reader).bytes, &c.InputGradient)},
			{"layers", false, func(r *reader) error { return r.array(func(r *reader) error { return readLayer(r, &c) }) }},
			{"loss", false, func(r *reader) error {
				_, err := r.object([]field{{"backward_us", false, into((*reader).time, &c.Loss.Backward)}, {"tmp_bytes", false, into((*reader).bytes, &c.Loss.Tmp)}})
				return err
			}},
			{"model", true, into(func(r *reader) (string, error) { return r.text("the model's name") }, &c.Model)},
			{"rows", true, into(func(r *reader) (int, error) { return r.count("the rows of the batch") }, &c.Rows)},
			{"threads", true, into(func(r *reader) (int, error) { return r.count("the threads that it was measured with") }, &c.Threads)},
			{"devices", true, into(func(r *reader) (int, error) { return r.count("the devices that worked while it was measured") }, &c.Devices)},
			{"spread", true, into((*reader).time, &c.Spread)},
			{"carries", true, func(r *reader) error { return readCarries(r, &c.Carries) }},
			{"gradient_carries", true, func(r *reader) error { return readCarries(r, &c.GradientCarries) }},
		})
		if err == nil && !seen["input_gradient_bytes"] {
			c.InputGradient = c.Input
		}
		return err
	})
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return remat.Chain{}, err
	}
	return c, nil
}

func readLayer(r *reader, c *remat.Chain) error {
	var l remat.Layer
	var d remat.Deferred
	seen, err := r.object([]field{
		{"name", false, into(func(r *reader) (string, error) { return r.text("the layer's name") }, &l.Name)},
		{"forward_us", false, into((*reader).time, &l.Forward)},
		{"forward_nograd_us", true, into((*reader).time, &l.ForwardNoGrad)},
		{"backward_us", false, into((*reader).time, &l.Backward)},
		{"backward_later_us", true, into((*reader).time, &l.BackwardLater)},
		{"output_bytes", false, into((*reader).bytes, &l.Output)},
		{"saved_bytes", false, into((*reader).bytes, &l.Saved)},
		{"forward_tmp_bytes", false, into((*reader).bytes, &l.ForwardTmp)},
		{"forward_nograd_tmp_bytes", true, into((*reader).bytes, &l.ForwardNoGradTmp)},
		{"backward_tmp_bytes", false, into((*reader).bytes, &l.BackwardTmp)},
		{"backward_early_bytes", true, into((*reader).bytes, &l.BackwardEarly)},
		{"gradient_bytes", true, into((*reader).bytes, &l.Gradient)},
		{"weight_gradient_bytes", true, into((*reader).bytes, &l.WeightGradient)},
		{"deferred", true, func(r *reader) error {
			_, err := r.object([]field{
				{"bytes", true, into((*reader).bytes, &d.Bytes)},
				{"input", true, into((*reader).truth, &d.Input)}, {"output", true, into((*reader).truth, &d.Output)},
				{"gradient", true, into((*reader).truth, &d.Gradient)}, {"input_gradient", true, into((*reader).truth, &d.InputGradient)},
				{"share", true, into((*reader).time, &d.Share)},
				{"longer_us", true, into((*reader).time, &d.Longer)},
			})
			return err
		}},
	})
	if err != nil {
		return err
	}
	if !seen["forward_nograd_us"] {
		l.ForwardNoGrad = l.Forward
	}
	if !seen["forward_nograd_tmp_bytes"] {
		l.ForwardNoGradTmp = l.ForwardTmp
	}
	if !seen["gradient_bytes"] {
		l.Gradient = l.Output
	}
	if seen["deferred"] && c.Deferred == nil {
		c.Deferred = make([]remat.Deferred, len(c.Layers))
	}
	if c.Layers = append(c.Layers, l); c.Deferred != nil {
		c.Deferred = append(c.Deferred, d)
	}
	return nil
}

func readCarries(r *reader, list *[]remat.Carry) error {
	layer := func(r *reader) (int, error) {
		n, err := r.integer("the number of a layer, or -1")
		if err == nil && int64(int(n)) != n {
			return 0, r.fail("%d; want the number of a layer, or -1", n)
		}
		return int(n), err
	}
	return r.array(func(r *reader) error {
		var c remat.Carry
		_, err := r.object([]field{{"from", false, into(layer, &c.From)}, {"to", false, into(layer, &c.To)}, {"bytes", false, into((*reader).bytes, &c.Bytes)}})
		*list = append(*list, c)
		return err
	})
}

// layerJSON, lossJSON and carryJSON are the order of fields in a file.
type layerJSON struct {
	Name             string   `json:"name"`
	Forward          float64  `json:"forward_us"`
	ForwardNoGrad    *float64 `json:"forward_nograd_us,omitempty"`
	Backward         float64  `json:"backward_us"`
	BackwardLater    float64  `json:"backward_later_us,omitempty"`
	Output           int64    `json:"output_bytes"`
	Saved            int64    `json:"saved_bytes"`
	ForwardTmp       int64    `json:"forward_tmp_bytes"`
	ForwardNoGradTmp *int64   `json:"forward_nograd_tmp_bytes,omitempty"`
	BackwardTmp      int64    `json:"backward_tmp_bytes"`
	BackwardEarly    int64    `json:"backward_early_bytes,omitempty"`
	Gradient         *int64   `json:"gradient_bytes,omitempty"`
	WeightGradient   int64    `json:"weight_gradient_bytes,omitempty"`

	Deferred *deferredJSON `json:"deferred,omitempty"`
}

type deferredJSON struct {
	Bytes         int64   `json:"bytes,omitempty"`
	Input         bool    `json:"input,omitempty"`
	Output        bool    `json:"output,omitempty"`
	Gradient      bool    `json:"gradient,omitempty"`
	InputGradient bool    `json:"input_gradient,omitempty"`
	Share         float64 `json:"share,omitempty"`
	Longer        float64 `json:"longer_us,omitempty"`
}

type lossJSON struct {
	Backward float64 `json:"backward_us"`
	Tmp      int64   `json:"tmp_bytes"`
}

type carryJSON struct {
	From  int   `json:"from"`
	To    int   `json:"to"`
	Bytes int64 `json:"bytes"`
}

// FormatChain writes a chain as [ParseChain] reads it: a layer a line, and what may be left out
// only where it differs from what it is then. It refuses what [remat.Chain.Check] does.
func FormatChain(c remat.Chain) ([]byte, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	var w writer
	w.field("version", 1)
	w.field("input_bytes", c.Input)
	if c.InputGradient != c.Input {
		w.field("input_gradient_bytes", c.InputGradient)
	}
	w.list("layers", len(c.Layers), func(i int) any {
		l := c.Layers[i]
		var deferred *deferredJSON
		if c.Deferred != nil {
			d := deferredJSON(c.Deferred[i])
			deferred = &d
		}
		return layerJSON{
			l.Name, l.Forward, unless(l.ForwardNoGrad, l.Forward), l.Backward, l.BackwardLater, l.Output, l.Saved,
			l.ForwardTmp, unless(l.ForwardNoGradTmp, l.ForwardTmp), l.BackwardTmp, l.BackwardEarly, unless(l.Gradient, l.Output), l.WeightGradient,
			deferred,
		}
	})
	w.field("loss", lossJSON(c.Loss))
	if c.Model != "" {
		w.field("model", c.Model)
	}
	if c.Rows > 0 {
		w.field("rows", c.Rows)
	}
	if c.Threads > 0 {
		w.field("threads", c.Threads)
	}
	if c.Devices > 0 {
		w.field("devices", c.Devices)
	}
	if c.Spread > 0 {
		w.field("spread", c.Spread)
	}
	for _, list := range []struct {
		name    string
		carries []remat.Carry
	}{{"carries", c.Carries}, {"gradient_carries", c.GradientCarries}} {
		if len(list.carries) > 0 {
			w.list(list.name, len(list.carries), func(i int) any { return carryJSON(list.carries[i]) })
		}
	}
	return w.end()
}

// unless is v, or nil where it is what a reader takes when nothing is written.
func unless[T comparable](v, taken T) *T {
	if v == taken {
		return nil
	}
	return &v
}
