package drover

// Tenant is an owner of jobs, limits and tokens.
type Tenant struct {
	Name string `json:"name"`
	// Weight is its share of the slots of a queue beside that of other tenants who wait
	// there; 1 is the default. It counts where a limit or a pause has tasks admitted.
	Weight float64 `json:"weight"`
}
