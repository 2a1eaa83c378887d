package draw

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// point is a place in a picture, x to the right and y down.
type point struct{ x, y float64 }

// box is where a node stands: its middle, and its size.
type box struct{ x, y, w, h float64 }

// Sizes in pixels.
const (
	letter    = 7.2 // width of a letter of the title, which is monospaced
	small     = 6   // of the note
	boxHeight = 26.0
	noteAdds  = 14.0
	padding   = 10.0
	gapX      = 56.0 // between columns
	gapY      = 16.0 // between boxes of a column
	laneY     = 10.0 // between a box and a line that passes it
	margin    = 20.0
)

// maxBends bounds the places at which long edges pass a column. Of a graph with
// more of them, the long edges are straight lines, so that a picture takes
// seconds at most.
const maxBends = 20_000

// layout says where everything is: boxes by node, and the places each edge goes
// through, from the right side of one box to the left side of the other.
type layout struct {
	w, h  float64
	boxes []box
	paths [][]point

	columns []struct{ left, right float64 }
}

// cell is a node, or a place where a long edge passes a column.
type cell struct {
	node     int // or -1
	rank     int
	up, down []int // neighbours, as indexes of cells, in the columns beside
	pos      int   // in its column
	y, h     float64
}

// lay places the nodes in columns, by the longest way to each, so that arrows go
// from left to right and few of them cross.
func lay(g Graph) layout {
	l := layout{boxes: make([]box, len(g.Nodes)), paths: make([][]point, len(g.Edges))}
	ranks := ranksOf(g)
	cells := make([]cell, len(g.Nodes))
	for i, n := range g.Nodes {
		w := float64(len([]rune(n.Title))) * letter
		h := boxHeight
		if n.Note != "" {
			w, h = max(w, float64(len([]rune(n.Note)))*small), h+noteAdds
		}
		l.boxes[i] = box{w: w + 2*padding, h: h}
		cells[i] = cell{node: i, rank: ranks[i], h: h}
	}
	bends := 0
	for _, e := range g.Edges {
		bends += ranks[e.To] - ranks[e.From] - 1
	}
	ways := make([][]int, len(g.Edges)) // of cells
	for k, e := range g.Edges {
		way := []int{e.From}
		if bends <= maxBends {
			for r := ranks[e.From] + 1; r < ranks[e.To]; r++ {
				way = append(way, len(cells))
				cells = append(cells, cell{node: -1, rank: r})
			}
		}
		way = append(way, e.To)
		ways[k] = way
		for i := 1; i < len(way); i++ {
			a, b := way[i-1], way[i]
			if cells[b].rank == cells[a].rank+1 {
				cells[a].down = append(cells[a].down, b)
				cells[b].up = append(cells[b].up, a)
			}
		}
	}
	columns := order(cells)
	place(cells, columns)
	l.measure(cells, columns)
	for k, way := range ways {
		l.paths[k] = l.path(cells, way)
	}
	return l
}

// ranksOf returns the length of the longest way to each node.
func ranksOf(g Graph) []int {
	ranks, unmet := make([]int, len(g.Nodes)), make([]int, len(g.Nodes))
	next := make([][]int, len(g.Nodes))
	for _, e := range g.Edges {
		next[e.From] = append(next[e.From], e.To)
		unmet[e.To]++
	}
	var todo []int
	for i, n := range unmet {
		if n == 0 {
			todo = append(todo, i)
		}
	}
	for ; len(todo) > 0; todo = todo[1:] {
		for _, to := range next[todo[0]] {
			ranks[to] = max(ranks[to], ranks[todo[0]]+1)
			if unmet[to]--; unmet[to] == 0 {
				todo = append(todo, to)
			}
		}
	}
	return ranks
}

// order puts the cells of each column in an order with few crossings: each by
// the middle of its neighbours, back and forth, the best order seen.
func order(cells []cell) [][]int {
	var columns [][]int
	for i := range cells {
		for len(columns) <= cells[i].rank {
			columns = append(columns, nil)
		}
		columns[cells[i].rank] = append(columns[cells[i].rank], i)
	}
	number := func(column []int) {
		for pos, c := range column {
			cells[c].pos = pos
		}
	}
	for _, c := range columns {
		number(c)
	}
	sweeps := 24
	if len(cells) > 3000 {
		sweeps = 6
	}
	best, fewest := copied(columns), crossings(cells, columns)
	for s := 0; s < sweeps && fewest > 0; s++ {
		for i := range columns {
			r, side := i, func(c *cell) []int { return c.up }
			if s%2 == 1 {
				r, side = len(columns)-1-i, func(c *cell) []int { return c.down }
			}
			middle := make(map[int]float64, len(columns[r]))
			for _, c := range columns[r] {
				middle[c] = float64(cells[c].pos)
				if near := side(&cells[c]); len(near) > 0 {
					sum := 0.0
					for _, o := range near {
						sum += float64(cells[o].pos)
					}
					middle[c] = sum / float64(len(near))
				}
			}
			slices.SortStableFunc(columns[r], func(a, b int) int { return cmp.Compare(middle[a], middle[b]) })
			number(columns[r])
		}
		if n := crossings(cells, columns); n < fewest {
			best, fewest = copied(columns), n
		}
	}
	for _, c := range best {
		number(c)
	}
	return best
}

func copied(columns [][]int) [][]int {
	out := make([][]int, len(columns))
	for i, c := range columns {
		out[i] = slices.Clone(c)
	}
	return out
}

// crossings counts the pairs of edges between neighbouring columns that cross.
func crossings(cells []cell, columns [][]int) int {
	total := 0
	for r := 0; r+1 < len(columns); r++ {
		tree := make([]int, len(columns[r+1])+1) // how many edges end at or before a place
		seen := 0
		for _, c := range columns[r] {
			ends := make([]int, 0, len(cells[c].down))
			for _, o := range cells[c].down {
				ends = append(ends, cells[o].pos)
			}
			sort.Ints(ends)
			for _, at := range ends {
				before := 0
				for i := at + 1; i > 0; i -= i & -i {
					before += tree[i]
				}
				total += seen - before
			}
			for _, at := range ends {
				for i := at + 1; i < len(tree); i += i & -i {
					tree[i]++
				}
				seen++
			}
		}
	}
	return total
}

// place sets the cells' y: each as near to the middle of its neighbours as the
// others of its column allow.
func place(cells []cell, columns [][]int) {
	apart := func(a, b *cell) float64 {
		gap := gapY
		if a.node < 0 || b.node < 0 {
			gap = laneY
		}
		return (a.h+b.h)/2 + gap
	}
	for _, column := range columns {
		for i, c := range column {
			if i > 0 {
				cells[c].y = cells[column[i-1]].y + apart(&cells[column[i-1]], &cells[c])
			}
		}
		if n := len(column); n > 0 { // in the middle, to begin with
			shift := cells[column[n-1]].y / 2
			for _, c := range column {
				cells[c].y -= shift
			}
		}
	}
	for s := range 12 {
		for i := range columns {
			r := i
			if s%2 == 1 {
				r = len(columns) - 1 - i
			}
			column := columns[r]
			want, offset := make([]float64, len(column)), make([]float64, len(column))
			for i, c := range column {
				x := &cells[c]
				if i > 0 {
					offset[i] = offset[i-1] + apart(&cells[column[i-1]], x)
				}
				near := x.up
				if s%2 == 1 {
					near = x.down
				}
				if s >= 10 || len(near) == 0 {
					near = slices.Concat(x.up, x.down)
				}
				want[i] = x.y
				if len(near) > 0 {
					want[i] = 0
					for _, o := range near {
						want[i] += cells[o].y
					}
					want[i] /= float64(len(near))
				}
				want[i] -= offset[i]
			}
			for i, y := range ascending(want) {
				cells[column[i]].y = y + offset[i]
			}
		}
	}
}

// ascending returns the ascending numbers nearest to v, by the sum of squares:
// neighbours that are out of order share their mean.
func ascending(v []float64) []float64 {
	type run struct {
		sum float64
		n   int
	}
	var runs []run
	for _, x := range v {
		runs = append(runs, run{x, 1})
		for k := len(runs) - 1; k > 0 && runs[k-1].sum*float64(runs[k].n) > runs[k].sum*float64(runs[k-1].n); k-- {
			runs[k-1] = run{runs[k-1].sum + runs[k].sum, runs[k-1].n + runs[k].n}
			runs = runs[:k]
		}
	}
	out := make([]float64, 0, len(v))
	for _, r := range runs {
		for range r.n {
			out = append(out, r.sum/float64(r.n))
		}
	}
	return out
}

// measure sets the boxes and the size of the picture, its corner at zero.
func (l *layout) measure(cells []cell, columns [][]int) {
	top, bottom := math.Inf(1), math.Inf(-1)
	for i := range cells {
		top, bottom = min(top, cells[i].y-cells[i].h/2), max(bottom, cells[i].y+cells[i].h/2)
	}
	if len(cells) == 0 {
		top, bottom = 0, 0
	}
	x := margin
	for _, column := range columns {
		w := 0.0
		for _, c := range column {
			if cells[c].node >= 0 {
				w = max(w, l.boxes[cells[c].node].w)
			}
		}
		for _, c := range column {
			cells[c].y += margin - top
			if n := cells[c].node; n >= 0 {
				l.boxes[n].x, l.boxes[n].y = x+w/2, cells[c].y
			}
		}
		l.columns = append(l.columns, struct{ left, right float64 }{x, x + w})
		x += w + gapX
	}
	l.w, l.h = max(x-gapX, margin)+margin, bottom-top+2*margin
}

// path is where an edge goes along its cells. It is straight within a column, so
// that it keeps clear of the column's boxes.
func (l *layout) path(cells []cell, way []int) []point {
	var out []point
	for i, c := range way {
		x := l.columns[cells[c].rank]
		left, right := point{x.left, cells[c].y}, point{x.right, cells[c].y}
		switch i {
		case 0:
			out = append(out, point{l.boxes[c].x + l.boxes[c].w/2, cells[c].y}, right)
		case len(way) - 1:
			out = append(out, left, point{l.boxes[c].x - l.boxes[c].w/2, cells[c].y})
		default:
			out = append(out, left, right)
		}
	}
	return out
}
