package replay

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// plotWidth is the width of a plot in its own units; a browser makes it as wide as the page.
const plotWidth = 800

// The room beside the plot.
const (
	marginRight  = 20
	marginBottom = 40
	marginTop    = 10
)

// axis maps values to a side of a plot.
type axis struct {
	least, most float64
	decades     bool // values are logarithms: ticks are whole
	text        func(float64) string
}

// part is where a value lies, from 0 to 1.
func (a *axis) part(v float64) float64 {
	return min(max(ratio(v-a.least, a.most-a.least), 0), 1)
}

// ticks are values to write down.
func (a *axis) ticks() (all []float64) {
	if a.decades {
		for v := a.least; v <= a.most+almost; v++ {
			all = append(all, v)
		}
		return all
	}
	step := roundStep((a.most - a.least) / 6)
	for i := math.Ceil(a.least / step); i*step <= a.most+almost; i++ {
		all = append(all, i*step)
	}
	return all
}

// roundStep is the least of 1, 2 and 5 times a power of ten that is not under x.
func roundStep(x float64) float64 {
	ten := math.Pow(10, math.Floor(math.Log10(max(x, almost))))
	for _, n := range [...]float64{1, 2, 5} {
		if n*ten >= x {
			return n * ten
		}
	}
	return 10 * ten
}

// point is a point of a line, in the values of the axes.
type point struct{ x, y float64 }

// plot is an SVG picture that is drawn.
type plot struct {
	b            strings.Builder
	height, left float64
	x, y         axis
}

// newPlot begins a picture that is so high without its margins, left of which so much is free.
func newPlot(height, left float64) *plot {
	p := &plot{height: height, left: left}
	fmt.Fprintf(&p.b, `<svg viewBox="0 0 %d %.0f" role="img">`, plotWidth, height+marginTop+marginBottom)
	return p
}

func (p *plot) end() template.HTML {
	p.b.WriteString("</svg>")
	return template.HTML(p.b.String()) //nolint:gosec // all text in it was escaped
}

// at and level are where a value of an axis lies; y is measured from the top margin.
func (p *plot) at(x float64) float64    { return p.left + p.x.part(x)*(plotWidth-marginRight-p.left) }
func (p *plot) level(y float64) float64 { return p.height * (1 - p.y.part(y)) }
func (p *plot) bottom() float64         { return p.height }

func (p *plot) label(x, y float64, anchor, text string) {
	fmt.Fprintf(&p.b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y+marginTop, anchor, template.HTMLEscapeString(text))
}

func (p *plot) line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(&p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`, x1, y1+marginTop, x2, y2+marginTop, color)
}

func (p *plot) rect(x, y, width, height float64, color, title string) {
	fmt.Fprintf(&p.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"><title>%s</title></rect>`,
		x, y+marginTop, width, height, color, template.HTMLEscapeString(title))
}

func (p *plot) path(points []point, color, dash, title string) {
	if len(points) == 0 {
		return
	}
	p.b.WriteString(`<polyline fill="none" stroke-width="2" stroke="` + color + `" stroke-dasharray="` + dash + `" points="`)
	for i, q := range points {
		if i > 0 {
			p.b.WriteByte(' ')
		}
		fmt.Fprintf(&p.b, "%.1f,%.1f", p.at(q.x), p.level(q.y)+marginTop)
	}
	p.b.WriteString(`"><title>` + template.HTMLEscapeString(title) + `</title></polyline>`)
}

func (p *plot) xAxis(name string) {
	p.line(p.left, p.bottom(), plotWidth-marginRight, p.bottom(), "#888")
	for _, v := range p.x.ticks() {
		p.line(p.at(v), p.bottom(), p.at(v), p.bottom()+4, "#888")
		p.label(p.at(v), p.bottom()+17, "middle", p.x.text(v))
	}
	p.label((p.left+plotWidth-marginRight)/2, p.bottom()+33, "middle", name)
}

func (p *plot) yAxis() {
	for _, v := range p.y.ticks() {
		p.line(p.left, p.level(v), plotWidth-marginRight, p.level(v), "#eee")
		p.label(p.left-6, p.level(v)+4, "end", p.y.text(v))
	}
}
