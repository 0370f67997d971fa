package main

import (
	"bytes"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"penstock.example/internal/solver"
	"penstock.example/remat"
)

// strategyMarks is how strategies are drawn. The colours suit people with colour blindness (Okabe and
// Ito, "Color Universal Design", 2008), and no two marks have one shape.
var strategyMarks = []struct {
	strategy string
	colour   color.NRGBA
	shape    draw.GlyphDrawer
}{
	{"none", color.NRGBA{0, 0, 0, 255}, draw.BoxGlyph{}},
	{"sequential", color.NRGBA{213, 94, 0, 255}, draw.CircleGlyph{}},
	{"revolve", color.NRGBA{0, 158, 115, 255}, draw.TriangleGlyph{}},
	{"all", color.NRGBA{90, 90, 90, 255}, draw.CrossGlyph{}},
}

// drawCurve draws the time of plans over their memory as an SVG: a step down at the peak of each, since a
// plan is the best under every limit from its peak to that of the next.
func drawCurve(title string, c remat.Chain, points []solver.Point, usual []remat.Baseline) ([]byte, error) {
	const highest = 120 // per cent: what takes longer is left out
	at := func(peak int64, time float64) plotter.XY {
		return plotter.XY{X: float64(peak) / (1 << 20), Y: part(time-c.Once(), c.Once())}
	}
	var steps plotter.XYs
	for _, point := range points {
		steps = append(steps, at(point.Peak, point.Time))
	}
	marks := map[string]plotter.XYs{}
	left, right, top := steps[0].X, steps[len(steps)-1].X, max(10, min(steps[0].Y, highest))
	for _, b := range usual {
		xy := at(b.Peak, b.Time)
		if right = max(right, xy.X); xy.Y <= highest {
			marks[b.Strategy], top = append(marks[b.Strategy], xy), max(top, xy.Y)
		}
	}
	right += max(right/20, 0.01)
	line, err := plotter.NewLine(append(steps, plotter.XY{X: right, Y: steps[len(steps)-1].Y}))
	if err != nil {
		return nil, err
	}
	line.StepStyle, line.Color, line.Width = plotter.PostStep, color.NRGBA{0, 114, 178, 255}, vg.Points(2)
	plot.DefaultFont.Variant = "Sans"
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "memory, MiB", "extra time, %"
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.Padding = true, true, 6.7*vg.Inch, vg.Points(3)
	p.Add(plotter.NewGrid(), line)
	p.Legend.Add("best plan", line)
	for _, m := range strategyMarks {
		scatter, err := plotter.NewScatter(marks[m.strategy])
		if err != nil {
			continue // none of the strategy is low enough
		}
		scatter.GlyphStyle = draw.GlyphStyle{Color: m.colour, Radius: vg.Points(4), Shape: m.shape}
		p.Add(scatter)
		p.Legend.Add(m.strategy, scatter)
	}
	// Add has widened the axes
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = max(0, 2*left-right), right, -top/40, 1.06*top
	canvas := vgsvg.New(10*vg.Inch, 5*vg.Inch)
	p.Draw(draw.Crop(draw.New(canvas), vg.Points(8), -vg.Points(8), vg.Points(8), -vg.Points(8)))
	var svg bytes.Buffer
	_, err = canvas.WriteTo(&svg)
	return svg.Bytes(), err
}
