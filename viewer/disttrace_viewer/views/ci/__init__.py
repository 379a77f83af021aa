"""Reports in the forms that CI systems read: annotations of GitHub, and JUnit's XML."""
