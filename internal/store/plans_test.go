package store_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/postgres"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// small are tables that stay small, so that reading all of one is no harm.
var small = []string{"tenants", "tokens", "queues", "lanes", "circuits", "pipelines", "retention", "job_holds", "job_purges", "sessions", "schema_migrations", "schema_compat"}

// wholly says of a statement that it is meant to read whole tables: those of an
// audit, which have settings of their own.
func wholly(name string) bool {
	return strings.HasPrefix(name, "invariant ") || strings.HasPrefix(name, "audit of ")
}

// TestNoStatementReadsAWholeTable: under the settings that every connection has,
// each statement finds what it wants by an index. The settings forbid a
// sequential scan where there is any other way, so that one in a plan says that
// there is none.
func TestNoStatementReadsAWholeTable(t *testing.T) {
	t.Parallel()
	if !slices.Contains(storetest.Drivers(t), "postgres") {
		t.Log("without PostgreSQL there is nothing to explain")
		return
	}
	db := storetest.Open(t, "postgres")
	c, err := db.Driver.(*postgres.DB).Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	explained := 0
	for i, text := range statements {
		if strings.HasPrefix(text.Name, "test") || strings.HasPrefix(text.Name, "Test") || oneDatabase[text.Name] == driver.SQLite || strings.HasPrefix(text.SQL(driver.PostgreSQL), "INSERT INTO") && !strings.Contains(text.SQL(driver.PostgreSQL), "SELECT") {
			continue
		}
		name := fmt.Sprintf("plan_%d", i)
		d, err := c.Conn().Prepare(t.Context(), name, text.SQL(driver.PostgreSQL))
		if err != nil {
			t.Errorf("%s: %v", text.Name, err)
			continue
		}
		args := ""
		if n := len(d.ParamOIDs); n > 0 {
			args = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
		}
		var plan []byte
		if err := c.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE "+name+args).Scan(&plan); err != nil {
			if !strings.Contains(err.Error(), "cannot be explained") && !strings.Contains(err.Error(), "is not allowed") {
				t.Errorf("%s: %v", text.Name, err)
			}
			continue
		}
		explained++
		var tree any
		if err := json.Unmarshal(plan, &tree); err != nil {
			t.Fatal(err)
		}
		for _, table := range scanned(tree, false) {
			if !slices.Contains(small, table) && !wholly(text.Name) {
				t.Errorf("%q reads all of %s:\n%s", text.Name, table, text.SQL(driver.PostgreSQL))
			}
		}
	}
	if explained < 50 {
		t.Errorf("%d statements were explained", explained)
	}
}

// scanned names the tables that a plan reads from end to end: by themselves, or
// along an index without a condition, unless a limit ends that.
func scanned(node any, limited bool) (tables []string) {
	switch n := node.(type) {
	case []any:
		for _, x := range n {
			tables = append(tables, scanned(x, limited)...)
		}
	case map[string]any:
		kind := fmt.Sprint(n["Node Type"])
		limited = limited || kind == "Limit"
		if _, ok := n["Index Cond"]; kind == "Seq Scan" || strings.HasPrefix(kind, "Index") && !ok && !limited {
			tables = append(tables, fmt.Sprint(n["Relation Name"]))
		}
		for _, x := range n {
			tables = append(tables, scanned(x, limited)...)
		}
	}
	return tables
}
