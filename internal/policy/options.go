package policy

// Options are the settings of policies.
type Options struct {
	// CacheWeight is how many tokens that wait on a rank cache_aware puts up with for a token
	// that the rank holds. 0: the caches do not count.
	CacheWeight float64
	// CacheMinMatch is the part of a prompt, from 0 to 1, below which cache_aware does not
	// count a match.
	CacheMinMatch float64
	// PrefixTokens is how many tokens of a prompt make the key of prefix_hash.
	PrefixTokens int
	// PrefixLoadFactor and PrefixLoadSlack bound the load of the rank that prefix_hash
	// prefers: it is passed over while it has both more than PrefixLoadFactor times the mean
	// of the tokens booked and more than PrefixLoadSlack requests above the mean.
	PrefixLoadFactor float64
	PrefixLoadSlack  int64
	// HotPrefixes is sent the pools of prefix_hash in which more than half of the requests
	// begin alike, each once. Nobody waits for a reader. nil: nobody is told.
	HotPrefixes chan<- HotPrefix
}

// DefaultOptions are those of [New]. They are the defaults of the command line.
func DefaultOptions() Options {
	return Options{CacheWeight: 8, CacheMinMatch: 0.1, PrefixTokens: 256, PrefixLoadFactor: 1.25, PrefixLoadSlack: 10}
}

// charactersPerToken is how long a token of a text is taken to be for the key of
// prefix_hash, as in the SGLang model gateway.
const charactersPerToken = 4

// PrefixBytes returns how many bytes of the beginning of a prompt make the key of
// prefix_hash.
func (o *Options) PrefixBytes() int { return o.PrefixTokens * charactersPerToken }

// UsesHolders tells whether the policy called name reads [admission.Hint.Holders].
func UsesHolders(name string) bool { return name == CacheAware }

// UsesPrefix tells whether the policy called name reads [admission.Hint.Prefix].
func UsesPrefix(name string) bool { return name == PrefixHash }
