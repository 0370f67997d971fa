package main

import (
	"bytes"
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
	"penstock.example/remat"
	"penstock.example/remat/solver"
)

// strategyMarks is how strategies are drawn. The colours can be told apart by those who do not see
// all of them (Okabe and Ito, "Color Universal Design", 2008), and no two marks have one shape.
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

var curveColour = color.NRGBA{0, 114, 178, 255}

// drawCurve draws the time of plans over their memory as an SVG: a step down at the peak of each,
// since a plan is the best under every limit from its peak to the next one's.
func drawCurve(title string, c remat.Chain, points []solver.Point, usual []remat.Baseline) ([]byte, error) {
	const highest = 120 // per cent: plans and strategies that take longer do not press the rest to the ground
	unit, name := 1.0, "bytes"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if float64(points[len(points)-1].Peak) < 1024*unit {
			break
		}
		unit, name = 1024*unit, larger
	}
	plot.DefaultFont.Variant = "Sans"
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "memory, "+name, "extra time, %"
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.Padding = true, true, 6.7*vg.Inch, vg.Points(3)
	p.Add(plotter.NewGrid())
	at := func(peak int64, time float64) plotter.XY {
		return plotter.XY{X: float64(peak) / unit, Y: part(time-c.Once(), c.Once())}
	}
	marks := map[string]plotter.XYs{}
	most, top := at(points[len(points)-1].Peak, 0).X, 10.0
	for _, b := range usual {
		xy := at(b.Peak, b.Time)
		if most = max(most, xy.X); xy.Y <= highest {
			marks[b.Strategy], top = append(marks[b.Strategy], xy), max(top, xy.Y)
		}
	}
	var steps plotter.XYs
	for _, point := range points {
		steps = append(steps, at(point.Peak, point.Time))
	}
	least, right := steps[0], most+max(most/20, 0.01)
	top = max(top, min(least.Y, highest))
	steps = append(steps, plotter.XY{X: right, Y: steps[len(steps)-1].Y})
	line, err := plotter.NewLine(steps)
	if err != nil {
		return nil, err
	}
	line.StepStyle, line.Color, line.Width = plotter.PostStep, curveColour, vg.Points(2)
	wall, err := plotter.NewLine(plotter.XYs{{X: least.X, Y: 0}, {X: least.X, Y: top}})
	if err != nil {
		return nil, err
	}
	wall.Color, wall.Dashes = curveColour, []vg.Length{vg.Points(3), vg.Points(3)}
	p.Add(wall, line)
	p.Legend.Add("best plan", line)
	p.Legend.Add("least that has a plan", wall)
	for _, m := range strategyMarks {
		if len(marks[m.strategy]) == 0 {
			continue
		}
		scatter, err := plotter.NewScatter(marks[m.strategy])
		if err != nil {
			return nil, err
		}
		scatter.GlyphStyle = draw.GlyphStyle{Color: m.colour, Radius: vg.Points(4), Shape: m.shape}
		p.Add(scatter)
		p.Legend.Add(m.strategy, scatter)
	}
	// Add has widened them
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = max(0, least.X-(right-most)), right, -top/40, 1.06*top
	canvas := vgsvg.New(10*vg.Inch, 5*vg.Inch)
	p.Draw(draw.Crop(draw.New(canvas), vg.Points(8), -vg.Points(8), vg.Points(8), -vg.Points(8)))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return nil, fmt.Errorf("drawing: %w", err)
	}
	return svg.Bytes(), nil
}
