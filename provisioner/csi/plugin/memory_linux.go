package plugin

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgram gives back the memory of the program's own file that was touched
// during the start. Half of it belongs to the provisioner, whose packages are in the
// same binary, and is never touched again on a node. The kernel reads the rest back
// when it is needed.
func releaseProgram() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // Nothing was written.
	var start, end uint64
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 6 && strings.Contains(fields[0], "-") {
			start, end = 0, 0
			// Writable memory is not backed by the file.
			if fields[5] == program && !strings.Contains(fields[1], "w") {
				start, end = bounds(fields[0])
			}
		}
		// Neither is memory that was written before it was protected.
		if len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0" && end > start {
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), unix.MADV_DONTNEED); errno != 0 {
				return errno
			}
		}
	}
	return lines.Err()
}

func bounds(text string) (start, end uint64) {
	first, second, _ := strings.Cut(text, "-")
	start, errStart := strconv.ParseUint(first, 16, 64)
	end, errEnd := strconv.ParseUint(second, 16, 64)
	if errStart != nil || errEnd != nil {
		return 0, 0
	}
	return start, end
}
