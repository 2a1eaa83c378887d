package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

func TestTheBestModelIsFound(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), &out, t.TempDir(), json.RawMessage(`{}`)); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	if !regexp.MustCompile(`(?s)^6 models trained, [1-9][0-9]* unusable rows left out\n(  penalty [^\n]+ error [0-9.]+\n){6}best: penalty (0|0.01|0.1|1), kept as artifact://art_[0-9A-Z]{26}\n$`).MatchString(got) {
		t.Errorf("the example says:\n%s", got)
	}
	if first := strings.Fields(got)[11]; !strings.HasPrefix(first, "0.1") && !strings.HasPrefix(first, "0.0") {
		t.Errorf("the error of the best model is %s, and the noise alone is 0.09:\n%s", first, got)
	}
}

func TestAnInputThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), &strings.Builder{}, t.TempDir(), json.RawMessage(`{"penalties": []}`))
	if err == nil || !strings.Contains(err.Error(), "schema") {
		t.Errorf("error = %v", err)
	}
}

func TestRidgeFindsAPlane(t *testing.T) {
	t.Parallel()
	var rows [][]float64
	for i := range 20 {
		x, y := float64(i%5), float64(i%7)
		rows = append(rows, []float64{1, x, y, 4 + 2*x - 3*y})
	}
	for k, want := range []float64{4, 2, -3} {
		if got := ridge(rows, 0)[k]; got < want-1e-6 || got > want+1e-6 {
			t.Errorf("weight %d = %g, want %g", k, got, want)
		}
	}
	if w := ridge(rows, 1e9); w[1] > 0.01 {
		t.Errorf("with a great penalty a weight is %g", w[1])
	}
}
