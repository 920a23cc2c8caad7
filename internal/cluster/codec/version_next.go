//go:build sluice_nextprotocol

package codec

import "google.golang.org/protobuf/encoding/protowire"

// newer writes a field that who does not know it skips, for tests of rolling upgrades.
func newer(c *coder) {
	if c.writes {
		c.buf = protowire.AppendVarint(protowire.AppendTag(c.buf, firstIgnorable+400, protowire.VarintType), 2)
	}
}
