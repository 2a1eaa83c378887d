package draw

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func sample() Graph {
	return Graph{
		Title: `a <graph> & "quotes"`,
		Nodes: []Node{{Title: "decode", Note: "exec", Mark: true}, {Title: "extract", Note: "exec · gpu", Stack: true}, {Title: `x"<y>`}, {Title: "rescue", Aside: true}},
		Edges: []Edge{{From: 0, To: 1, Mark: true}, {From: 0, To: 2, Dashed: true, Label: "element by element"}, {From: 1, To: 2}, {From: 2, To: 3}},
	}
}

func randomGraph(rng *rand.Rand) Graph {
	g := Graph{Title: "random"}
	n := 1 + rng.IntN(40)
	for i := range n {
		x := Node{Title: strings.Repeat("n", 1+rng.IntN(20)), Stack: rng.IntN(4) == 0}
		if rng.IntN(2) == 0 {
			x.Note = strings.Repeat("o", rng.IntN(30))
		}
		g.Nodes = append(g.Nodes, x)
		for j := range i {
			if rng.IntN(i+1) < 2 {
				g.Edges = append(g.Edges, Edge{From: j, To: i})
			}
		}
	}
	return g
}

func TestPicturesKeepBoxesAndLinesApart(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		g := randomGraph(rng)
		l := lay(g)
		for i, a := range l.boxes {
			if a.x-a.w/2 < 0 || a.y-a.h/2 < 0 || a.x+a.w/2 > l.w || a.y+a.h/2 > l.h {
				t.Fatalf("box %d is outside of the picture: %+v in %g × %g", i, a, l.w, l.h)
			}
			for k, b := range l.boxes[:i] {
				if a.x-a.w/2 < b.x+b.w/2 && b.x-b.w/2 < a.x+a.w/2 && a.y-a.h/2 < b.y+b.h/2+4 && b.y-b.h/2 < a.y+a.h/2+4 {
					t.Fatalf("boxes %d and %d overlap: %+v, %+v", i, k, a, b)
				}
			}
		}
		for k, p := range l.paths {
			e := g.Edges[k]
			for i := 1; i < len(p); i++ {
				if p[i].x < p[i-1].x-1e-6 {
					t.Fatalf("edge %d goes back: %v", k, p)
				}
				if p[i].y != p[i-1].y {
					continue // between two columns, where no box is
				}
				for n, b := range l.boxes {
					if n != e.From && n != e.To && p[i].y > b.y-b.h/2 && p[i].y < b.y+b.h/2 && p[i-1].x < b.x+b.w/2 && p[i].x > b.x-b.w/2 {
						t.Fatalf("edge %d runs through box %d: %v, %+v", k, n, p, b)
					}
				}
			}
		}
	}
}

func TestTreesAreDrawnWithoutCrossings(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		g := Graph{Nodes: []Node{{Title: "root"}}}
		for i := 1; i < 40; i++ {
			g.Nodes = append(g.Nodes, Node{Title: "n"})
			g.Edges = append(g.Edges, Edge{From: rng.IntN(i), To: i})
		}
		l := lay(g)
		for a := range l.paths {
			for b := range a {
				for i := 2; i < len(l.paths[a]); i += 2 {
					for k := 2; k < len(l.paths[b]); k += 2 {
						p, q := l.paths[a][i-1:i+1], l.paths[b][k-1:k+1]
						if p[0].x == q[0].x && (p[0].y-q[0].y)*(p[1].y-q[1].y) < 0 {
							t.Fatalf("edges %d and %d cross: %v, %v", a, b, p, q)
						}
					}
				}
			}
		}
	}
}

func TestLargeGraphsAreDrawnInSeconds(t *testing.T) {
	t.Parallel()
	g := Graph{}
	for i := range 5000 {
		g.Nodes = append(g.Nodes, Node{Title: "node"})
		for _, j := range []int{i / 2, i - 1, i / 50} {
			if i > 0 && j < i {
				g.Edges = append(g.Edges, Edge{From: j, To: i})
			}
		}
	}
	start := time.Now()
	if s := SVG(g); !strings.Contains(s, "</svg>") {
		t.Error("no picture")
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("5,000 nodes took %s", took)
	}
}

func TestSVGIsWellFormedAndHasEverything(t *testing.T) {
	t.Parallel()
	for _, g := range []Graph{sample(), {}, {Title: "one\x00", Nodes: []Node{{Title: "a\tb"}}}} {
		s := SVG(g)
		d := xml.NewDecoder(strings.NewReader(s))
		counts := map[string]int{}
		for {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, s)
			}
			if el, ok := tok.(xml.StartElement); ok {
				counts[el.Name.Local]++
			}
		}
		if counts["g"] != len(g.Nodes) || counts["path"] != len(g.Edges)+2 {
			t.Errorf("%d boxes and %d arrows, want %d and %d", counts["g"], counts["path"]-2, len(g.Nodes), len(g.Edges))
		}
	}
	s := SVG(sample())
	for _, want := range []string{"prefers-color-scheme:dark", ">decode<", "x&quot;&lt;y&gt;", "exec · gpu", "element by element", `class="box mark"`, `class="edge dashed"`} {
		if !strings.Contains(s, want) {
			t.Errorf("the picture lacks %q", want)
		}
	}
}

func ExampleDOT() {
	fmt.Print(DOT(sample()))
	// Output:
	// digraph "a <graph> & \"quotes\"" {
	// 	rankdir=LR;
	// 	node [shape=box, style=rounded, fontname="monospace"];
	// 	edge [fontname="monospace", fontsize=10];
	// 	n0 [label="decode\nexec", penwidth=2, color="#c2410c"];
	// 	n1 [label="extract\nexec · gpu", peripheries=2];
	// 	n2 [label="x\"<y>"];
	// 	n3 [label="rescue", style="rounded,dotted"];
	// 	n0 -> n1 [penwidth=2, color="#c2410c"];
	// 	n0 -> n2 [style=dashed, label="element by element"];
	// 	n1 -> n2;
	// 	n2 -> n3;
	// }
}

func ExampleMermaid() {
	fmt.Print(Mermaid(sample()))
	// Output:
	// flowchart LR
	//   n0("decode<br/><small>exec</small>")
	//   n1[["extract<br/><small>exec · gpu</small>"]]
	//   n2("x#quot;#lt;y#gt;")
	//   n3("rescue")
	//   n0 ==> n1
	//   n0 -.->|"element by element"| n2
	//   n1 --> n2
	//   n2 --> n3
	//   classDef critical stroke:#c2410c,stroke-width:2px
	//   class n0 critical
	//   classDef aside stroke-dasharray:3 3
	//   class n3 aside
}
