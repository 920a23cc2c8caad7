//go:build !sluice_nextprotocol

package codec

// newer are the fields of an envelope that newer versions have; there are none yet.
func newer(*coder) {}
