package draw

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"penstock.example/schedule"
)

// colour is red, green and blue, up to 255.
type colour [3]float64

// style is how actions of a kind are drawn.
type style struct {
	kind   schedule.Kind
	name   string
	colour colour
}

// styles has the style of each kind; the last is for all transfers. The colours suit people with
// colour blindness (after Okabe and Ito, "Color Universal Design", 2008), and are those of a run's page.
var styles = []style{
	{schedule.Forward, "forward", colour{0, 114, 178}},
	{schedule.Recompute, "recomputation", colour{110, 110, 110}},
	{schedule.Backward, "backward", colour{184, 74, 0}},
	{schedule.BackwardInput, "gradient of the input", colour{230, 159, 0}},
	{schedule.BackwardWeight, "gradients of the weights", colour{0, 125, 92}},
	{schedule.Reduce, "gradient reduction", colour{125, 84, 40}},
	{schedule.SendActivation, "transfer", colour{190, 100, 155}},
}

func styleOf(k schedule.Kind) style {
	i := slices.IndexFunc(styles, func(s style) bool { return s.kind == k })
	return styles[cmp.Or(i+1, len(styles))-1]
}

// hex returns the colour mixed with a share of white.
func (c colour) hex(white float64) string {
	part := func(i int) int { return int(c[i] + (255-c[i])*white + 0.5) }
	return fmt.Sprintf("#%02x%02x%02x", part(0), part(1), part(2))
}

// ink returns black or white, whichever has more contrast with the colour mixed with a share of white.
func (c colour) ink(white float64) string {
	luminance := 0.0 // by WCAG 2
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		luminance += weight * math.Pow(((c[i]+(255-c[i])*white)/255+0.055)/1.055, 2.4)
	}
	if luminance > 0.179 {
		return "#000000"
	}
	return "#ffffff"
}
